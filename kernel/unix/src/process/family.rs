//! A process among others: its parent, its group and session, and its place in the table.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use abi_unix::Errno;
use spin::Mutex;

use crate::process::accounts::{Account, Charge, Resource};
use crate::scheduling::standing::UsedTime;

/// Number of bytes of kernel memory for an entry in the table of processes and in its indexes.
const MEMORY_OF_A_PLACE: usize = 320;
/// Number of processes that can be above each other. Decisions by the tree walk upwards.
pub(super) const DEEPEST: usize = 64;

/// A place in the table of processes, from before a process is made until its parent has waited for it.
#[derive(Debug)]
pub(crate) struct ProcessPlace {
    _process: Charge,
    _memory: Charge,
}

impl ProcessPlace {
    /// Takes a place for a child of a process with this account. `EAGAIN` if that has started too many processes;
    /// `ENOMEM`.
    pub(crate) fn new(parent: &Arc<Account>) -> Result<ProcessPlace, Errno> {
        let process = parent.charge(Resource::Processes, 1)?;
        Ok(ProcessPlace { _process: process, _memory: parent.charge(Resource::Memory, MEMORY_OF_A_PLACE)? })
    }
}

/// The relations of a process to others. Changed by the [table](crate::process::table) alone.
pub(crate) struct Family {
    /// Its place among the processes, charged to its parent until that has waited.
    pub(super) place: Mutex<Option<ProcessPlace>>,
    pub(super) parent: AtomicU32,
    /// The nearest living process that it is below, 0 for the first process. Changed under the lock of the table.
    pub(super) above: AtomicU32,
    /// Its process group, which keys of the terminal and `kill` reach together. Its parent's group until another is
    /// set. Changed under the lock of the table, as the following are.
    pub(super) group: AtomicU32,
    /// Its session: groups with a controlling terminal, or none, in common.
    pub(super) session: AtomicU32,
    /// The group that it anchors, as the child of a member of another group of its session; 0 for none.
    pub(super) anchors: AtomicU32,
    /// Whether it has executed another program, after which its parent does not move it to another group.
    pub(super) has_executed: AtomicBool,
    /// Status for its parent since it has stopped or gone on, 0 for none. Changed under the lock of the table.
    pub(super) change: AtomicU32,
    /// Whether it has given up its session's terminal for itself (`TIOCNOTTY`).
    pub(super) has_no_terminal: AtomicBool,
    /// Whether signals that it has sent to a group because of a terminal are still on their way.
    pub(super) is_signalling: AtomicBool,
    /// Whether it inherits the children of processes below it (`PR_SET_CHILD_SUBREAPER`).
    pub(super) inherits: AtomicBool,
    /// Number of the signal that it gets when its parent ends (`PR_SET_PDEATHSIG`); 0 for none.
    pub(super) signal_of_orphan: AtomicU8,
    /// Processor time of children that were waited for.
    children_user: AtomicU64,
    children_system: AtomicU64,
}

impl Family {
    /// Creates the family of a process that this parent starts.
    pub(super) fn new(parent: u32, group: u32, session: u32, place: ProcessPlace) -> Family {
        Family {
            place: Mutex::new(Some(place)),
            parent: AtomicU32::new(parent),
            above: AtomicU32::new(parent),
            group: AtomicU32::new(group),
            session: AtomicU32::new(session),
            anchors: AtomicU32::new(0),
            has_executed: AtomicBool::new(false),
            change: AtomicU32::new(0),
            has_no_terminal: AtomicBool::new(false),
            is_signalling: AtomicBool::new(false),
            inherits: AtomicBool::new(false),
            signal_of_orphan: AtomicU8::new(0),
            children_user: AtomicU64::new(0),
            children_system: AtomicU64::new(0),
        }
    }

    /// Returns the process that started it, or that inherited it.
    pub(super) fn parent(&self) -> u32 {
        self.parent.load(Ordering::Relaxed)
    }

    /// Returns its process group.
    pub(super) fn group(&self) -> u32 {
        self.group.load(Ordering::Relaxed)
    }

    /// Returns its session.
    pub(super) fn session(&self) -> u32 {
        self.session.load(Ordering::Relaxed)
    }

    /// Returns the processor time of children that it has waited for, and of those for which they have.
    pub(super) fn children_time(&self) -> UsedTime {
        let [user, system] = [&self.children_user, &self.children_system].map(|ticks| ticks.load(Ordering::Relaxed));
        UsedTime { user, system }
    }

    /// Adds the processor time of a child that it has waited for.
    pub(super) fn add_time(&self, time: UsedTime) {
        self.children_user.fetch_add(time.user, Ordering::Relaxed);
        self.children_system.fetch_add(time.system, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_charged_to_the_parent_until_it_is_given_back() {
        // Other tests put the amounts of the machine aside.
        let _guard = crate::testing::alone();
        let account = Account::of_the_first();
        let before = account.used(Resource::Memory);
        let family = Family::new(3, 4, 5, ProcessPlace::new(&account).unwrap());
        assert_eq!(
            (family.parent(), family.group(), family.session(), family.children_time()),
            (3, 4, 5, UsedTime::default())
        );
        assert_eq!(account.used(Resource::Memory) - before, MEMORY_OF_A_PLACE);
        family.add_time(UsedTime { user: 5, system: 1 });
        family.add_time(UsedTime { user: 6, system: 2 });
        assert_eq!(family.children_time(), UsedTime { user: 11, system: 3 });
        drop(family.place.lock().take());
        assert_eq!(account.used(Resource::Memory), before);
    }
}
