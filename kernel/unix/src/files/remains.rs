//! Remains: work that goes on in steps after the call that has caused it.
//!
//! A call can end much at once: an epoll with thousands of registrations, messages with files that nobody receives, a
//! large file, a pseudo-terminal whose foreground is to be told. It does the first step and leaves the rest as a
//! [`Remain`], a value that knows its next step and the process that pays for it. The next call that closes something
//! does a step, the end of a process does all, and a coroutine of the kernel, [`CLEANER`], does the others for their
//! owners ([`cleaning`](crate::files::cleaning)). While the budget of an owner is used up, its remains are *behind*:
//! they wait for the next period, or for a hart with nothing else to do.
//!
//! The remains of file systems stay in the file systems; [`register`] tells how to free them. So this is below all
//! kinds of objects that leave something. Rejected: one enum of all remains, which was above the process, as signals
//! are, and below open files at the same time.
//!
//! A call waits for what was left before its end, by itself or others, and for the consequences of that, but not for
//! what others leave meanwhile: a process that leaves something again and again would keep all others from going on.
//! Each remain has a number for this, its *birth*, and what its steps leave has the same one.
//!
//! Remains need no memory to be left: without any, all of the work is done at once.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use hal_api::{MAXIMUM_HARTS, Machine as _};
use platform::Machine;
use spin::{Mutex, Once};

use crate::scheduling::executor::{self, Attendant, EXHAUSTED};
use crate::scheduling::steps;

/// Work that goes on after a call, some in each step.
#[doc(alias = "delayed_fput")]
pub(crate) trait Remain: Send {
    /// Returns the number of the process that pays for the next step; `None` if it has gone.
    fn owner(&self) -> Option<u32>;

    /// Does a step; returns whether nothing is left.
    fn step(&mut self) -> bool;
}

// The type of a box for one value that can be made without a panic.
impl<R: Remain> Remain for [R; 1] {
    fn owner(&self) -> Option<u32> {
        self[0].owner()
    }

    fn step(&mut self) -> bool {
        self[0].step()
    }
}

/// A remain in a list.
struct Left {
    birth: u64,
    remain: Box<dyn Remain>,
}

/// All remains: those that are next, by their birth, and those of processes whose budget is used up. Each list has room
/// for the other's too, so that no change of the list needs memory.
struct Lists {
    next: VecDeque<Left>,
    behind: VecDeque<Left>,
}

impl Lists {
    /// Makes room for one more; returns whether there is memory.
    fn reserve(&mut self) -> bool {
        let (next, behind) = (self.next.len(), self.behind.len());
        self.next.try_reserve(behind + 1).is_ok() && self.behind.try_reserve(next + 1).is_ok()
    }

    /// Puts one that has more steps before all that are not older; returns it if there is no room.
    fn put_back(&mut self, left: Left) -> Result<(), Left> {
        if self.next.len() == self.next.capacity() {
            return Err(left);
        }
        let place = self.next.partition_point(|other| other.birth < left.birth);
        self.next.insert(place, left);
        Ok(())
    }
}

static REMAINS: Mutex<Lists> = Mutex::new(Lists { next: VecDeque::new(), behind: VecDeque::new() });
/// The next birth.
// Relaxed, as all of these: of two that are left at the same time on different harts, neither is the older one.
static BIRTHS: AtomicU64 = AtomicU64::new(0);
/// The birth of the remain of which each hart does a step; all ones for none. Set under the lock of the lists.
static WORKING: [AtomicU64; MAXIMUM_HARTS] = [const { AtomicU64::new(u64::MAX) }; MAXIMUM_HARTS];
/// Number of remains that are next, with those that are being worked on, so that no lock is needed to see that there
/// are none.
// Changed with release, most often under the lock of the lists, and read with acquire: a number that is not 0 leads to
// lists that have them. A number that is seen too late costs the summoned cleaner nothing, as it looks again.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Number of remains that are behind, for the same reason and in the same orders.
static BEHIND: AtomicUsize = AtomicUsize::new(0);
/// Set if a budget was refilled since the cleaner's last look at those that are behind.
// Set with release before the cleaner is summoned, and taken by a swap before the lists are read: a later refill sets
// it again.
static IS_REFILLED: AtomicBool = AtomicBool::new(false);

/// The coroutine that does the rest: [`cleaning`](crate::files::cleaning).
pub(super) static CLEANER: Attendant = Attendant::new();

/// Remains of file systems.
pub(crate) struct OfFileSystems {
    /// Frees some; returns `false` if there are none.
    pub free_some: fn() -> bool,
    /// Returns whether there are some.
    pub are_left: fn() -> bool,
}

static OF_FILE_SYSTEMS: Once<OfFileSystems> = Once::new();

/// Registers the remains of file systems. Called once.
pub(super) fn register(of_file_systems: OfFileSystems) {
    OF_FILE_SYSTEMS.call_once(|| of_file_systems);
}

/// Returns the birth of what is left now: that of the remain of which this hart does a step, or a new one.
pub(super) fn birth() -> u64 {
    let present = WORKING[Machine::hart()].load(Ordering::Relaxed);
    if present == u64::MAX { BIRTHS.fetch_add(1, Ordering::Relaxed) } else { present }
}

/// Does one step of the work immediately, and leaves the others.
pub(crate) fn leave(remain: impl Remain + 'static) {
    leave_as(birth(), remain);
}

/// Does as [`leave`] for a remain of this birth.
pub(super) fn leave_as(birth: u64, mut remain: impl Remain + 'static) {
    if remain.step() {
        return;
    }
    let mut place = Vec::new();
    if place.try_reserve_exact(1).is_err() {
        while !remain.step() {}
        return;
    }
    place.push(remain);
    // A vector of one becomes a box in place.
    let Ok(mut remain) = <Box<[_; 1]>>::try_from(place) else { return };
    {
        let mut lists = REMAINS.lock();
        if lists.reserve() {
            // The cleaner finds out whether the owner has budget left.
            let place = lists.next.partition_point(|other| other.birth <= birth);
            lists.next.insert(place, Left { birth, remain });
            COUNT.fetch_add(1, Ordering::Release);
            drop(lists);
            CLEANER.summon();
            return;
        }
    }
    while !remain.step() {}
}

/// Does a step of what calls have left before this birth; returns `false` if there is none. The calling coroutine pays.
/// Remains that are behind are for callers that are themselves behind all others.
fn free_left(before: u64) -> bool {
    COUNT.load(Ordering::Acquire) != 0 && free_next(before, |remain| Some(remain.step()))
        || is_behind_all() && free_one_behind()
}

/// Returns whether the calling coroutine works only while no other wants to.
fn is_behind_all() -> bool {
    executor::current_priority() == EXHAUSTED
}

/// Does a step of what calls have left, or frees some pages of files or a piece of a file system that has gone; returns
/// `false` if there is nothing of these.
pub(crate) fn free_some() -> bool {
    free_some_before(u64::MAX)
}

fn free_some_before(before: u64) -> bool {
    free_left(before) || OF_FILE_SYSTEMS.get().is_some_and(|others| (others.free_some)())
}

/// Frees the remains that there are, in steps of work that ends a process or gives one up.
///
/// # Cancellation
/// Weak: the rest is left to others.
pub(crate) async fn free_at_the_end() {
    let before = BIRTHS.load(Ordering::Relaxed);
    while free_some_before(before) {
        steps::pause_at_the_end().await;
    }
}

/// Frees the remains that there are in steps, in a call of a process.
///
/// # Cancellation
/// The rest is freed by others.
pub(crate) async fn free_for<P: steps::Ends>(payer: &P) {
    let before = BIRTHS.load(Ordering::Relaxed);
    while free_some_before(before) {
        steps::pause(payer).await;
    }
}

/// Does as [`free_some`] where time is nothing that another wants: remains of processes whose budget is used up are
/// freed, too.
pub(crate) fn free_any() -> bool {
    free_some() || free_one_behind()
}

/// Does a step for the cleaner, for which the owner pays: `charging` does it for the process with this number, or
/// returns `None` if that has no budget left, and then its remains are put behind. Returns `false` if there are none.
pub(super) fn free_for_owners(charging: impl Fn(u32, &mut dyn FnMut() -> bool) -> Option<bool>) -> bool {
    COUNT.load(Ordering::Acquire) != 0
        && free_next(u64::MAX, |remain| match remain.owner() {
            Some(owner) => charging(owner, &mut || remain.step()),
            None => Some(remain.step()),
        })
}

/// Does a step for the oldest remain, if its birth is before this one; returns `false` if there are none such.
fn free_next(before: u64, step: impl Fn(&mut dyn Remain) -> Option<bool>) -> bool {
    let mut left = {
        let mut lists = REMAINS.lock();
        if lists.next.front().is_none_or(|left| left.birth >= before) {
            // Other harts may be working on the last remains: they count until that is done.
            return WORKING.iter().any(|birth| birth.load(Ordering::Relaxed) < before);
        }
        let Some(left) = lists.next.pop_front() else { return false };
        WORKING[Machine::hart()].store(left.birth, Ordering::Relaxed);
        left
    };
    // Without the lock: files may go with their last registration, and leave remains of their own.
    let result = step(&mut *left.remain);
    {
        let mut lists = REMAINS.lock();
        if result != Some(true) {
            if result.is_none() && lists.behind.len() < lists.behind.capacity() {
                lists.behind.push_back(left);
                BEHIND.fetch_add(1, Ordering::Release);
                COUNT.fetch_sub(1, Ordering::Release);
                is_working_no_more();
                return true;
            }
            match lists.put_back(left) {
                Ok(()) => {
                    is_working_no_more();
                    return true;
                }
                Err(without_room) => left = without_room,
            }
            drop(lists);
            // Without room for them they go at once.
            while !left.remain.step() {}
        }
    }
    drop(left);
    is_working_no_more();
    COUNT.fetch_sub(1, Ordering::Release);
    true
}

fn is_working_no_more() {
    WORKING[Machine::hart()].store(u64::MAX, Ordering::Relaxed);
}

/// Does a step for remains that are behind; returns `false` if there are none.
fn free_one_behind() -> bool {
    let Some(mut left) = take_from_behind() else { return false };
    if !left.remain.step() {
        let mut lists = REMAINS.lock();
        if lists.behind.len() < lists.behind.capacity() {
            lists.behind.push_front(left);
            BEHIND.fetch_add(1, Ordering::Release);
            return true;
        }
        drop(lists);
        while !left.remain.step() {}
    }
    true
}

fn take_from_behind() -> Option<Left> {
    if BEHIND.load(Ordering::Acquire) == 0 {
        return None;
    }
    let left = REMAINS.lock().behind.pop_front()?;
    BEHIND.fetch_sub(1, Ordering::Release);
    Some(left)
}

/// Returns the number of remains that are behind, if a budget has been refilled since the last call.
pub(super) fn number_to_look_at() -> usize {
    if IS_REFILLED.swap(false, Ordering::AcqRel) { REMAINS.lock().behind.len() } else { 0 }
}

/// Returns the number of remains that are behind.
#[cfg(test)]
pub(super) fn number_behind() -> usize {
    BEHIND.load(Ordering::Relaxed)
}

/// Puts the first one of those that are behind before the others.
pub(super) fn bring_forward() {
    let Some(left) = take_from_behind() else { return };
    let mut lists = REMAINS.lock();
    match lists.put_back(left) {
        Ok(()) => {
            COUNT.fetch_add(1, Ordering::Release);
        }
        Err(mut left) => {
            drop(lists);
            while !left.remain.step() {}
        }
    }
}

/// Makes the cleaner look at those that are behind: a budget has been refilled, or an owner has ended.
pub(crate) fn look_behind() {
    if BEHIND.load(Ordering::Acquire) != 0 {
        IS_REFILLED.store(true, Ordering::Release);
        CLEANER.summon();
    }
}

/// Returns whether there is something for [`free_some`].
pub(crate) fn are_left() -> bool {
    has_left() || OF_FILE_SYSTEMS.get().is_some_and(|others| (others.are_left)())
}

/// Returns whether calls have left something that the calling coroutine may free.
pub(super) fn has_left() -> bool {
    // Acquire: pairs with the release in `leave`.
    COUNT.load(Ordering::Acquire) != 0 || BEHIND.load(Ordering::Acquire) != 0 && is_behind_all()
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::open;

    use super::*;
    use crate::process::accounts::Resource;
    use crate::testing::{DATA, run};

    /// A large file is freed in steps before the call that ends it is done; nothing of it is left or charged then.
    #[test]
    fn a_large_file_that_is_closed_leaves_nothing() {
        run(|program| {
            let path = program.store(b"/tmp/large\0");
            let flags = (open::RDWR | open::CREAT) as usize;
            let file = program.call(SystemCall::Open, [0, path, flags, 0o644]).unwrap();
            for piece in 0..60 {
                let at = piece * 100_000;
                assert_eq!(program.call(SystemCall::WriteAt, [file, DATA, 100_000, at]), Ok(100_000));
            }
            assert!(program.process().account.used(Resource::Files) >= 6_000_000);
            assert_eq!(program.call(SystemCall::Unlink, [0, path, 0]), Ok(0));
            assert!(!are_left(), "it is open");
            let looks = crate::observing::counters::read(abi_unix::Counter::Looks);
            assert_eq!(program.close(file), Ok(0));
            assert!(!are_left() && !free_some());
            assert_eq!(program.process().account.used(Resource::Files), 0);
            assert!(crate::observing::counters::read(abi_unix::Counter::Looks) > looks, "it went in steps");
        });
    }

    /// A call does not wait for what others leave meanwhile, again and again.
    #[test]
    fn a_call_waits_for_earlier_remains_only() {
        static STEPS_OF_CALLER: AtomicUsize = AtomicUsize::new(0);

        struct Again {
            rest: usize,
            has_begun: bool,
        }

        impl Remain for Again {
            fn owner(&self) -> Option<u32> {
                None
            }

            fn step(&mut self) -> bool {
                if crate::scheduling::payers::present() != 0 {
                    STEPS_OF_CALLER.fetch_add(1, Ordering::Relaxed);
                }
                if core::mem::replace(&mut self.has_begun, true) && self.rest > 0 {
                    let birth = BIRTHS.fetch_add(1, Ordering::Relaxed);
                    leave_as(birth, Again { rest: self.rest - 1, has_begun: false });
                    return true;
                }
                self.rest == 0
            }
        }

        run(|program| {
            let (reader, _writer) = program.pipe(0);
            leave(Again { rest: 1000, has_begun: false });
            STEPS_OF_CALLER.store(0, Ordering::Relaxed);
            assert_eq!(program.close(reader), Ok(0));
            let steps = STEPS_OF_CALLER.load(Ordering::Relaxed);
            assert!((1..10).contains(&steps), "{steps}");
            program.sleep_ns(1_000_000);
            assert!(!are_left(), "the others were left to the cleaner");
        });
    }

    /// Pages of a file that becomes shorter, or that is open when its process ends, are freed too.
    #[test]
    fn files_that_are_cut_off_or_left_open_leave_nothing() {
        run(|program| {
            let child = program.spawn(|program| {
                let path = program.store(b"/tmp/cut\0");
                let flags = (open::RDWR | open::CREAT) as usize;
                let file = program.call(SystemCall::Open, [0, path, flags, 0o644]).unwrap();
                for piece in 0..50 {
                    program.call(SystemCall::WriteAt, [file, DATA, 100_000, piece * 100_000]).unwrap();
                }
                let before = program.process().account.used(Resource::Files);
                assert_eq!(program.call(SystemCall::Truncate, [file, 1_000_000]), Ok(0));
                let after = program.process().account.used(Resource::Files);
                assert!(before >= 5_000_000 && (1_000_000..1_200_000).contains(&after), "{before} {after}");
                assert!(!are_left());
                program.call(SystemCall::Unlink, [0, path, 0]).unwrap();
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert!(!are_left());
            assert_eq!(program.process().account.used(Resource::Files), 0);
        });
    }
}
