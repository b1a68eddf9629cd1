//! The table of processes: numbers, zombies, and the indexes by parent, group and ancestor.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::ops::RangeInclusive;
use core::sync::atomic::Ordering;
use core::task::{Poll, Waker};

use abi_unix::{Counter, Errno, types};
use spin::Mutex;
use waiters::Waiters;

use crate::observing::counters;
use crate::process::accounts::MAXIMUM_PROCESSES;
use crate::process::ending::Ending;
use crate::process::family::ProcessPlace;
use crate::process::{FIRST, Process};
use crate::scheduling::steps;

/// Number of children that one such step releases: each is in several indexes.
const CHILDREN_AT_A_TIME: usize = 8;
/// Number of processes that one step of a search looks at.
const MOST_LOOKED_AT: usize = 256;
/// Number of processes that can be above each other. Decisions by the tree walk upwards.
const DEEPEST: usize = 64;
enum ProcessEntry {
    Alive(Arc<Process>),
    /// `ticks`: the processor time that it and its children have used.
    Zombie {
        group: u32,
        ending: Ending,
        ticks: u64,
        _place: Option<ProcessPlace>,
    },
}

/// A child in the index of its parent's children: parent, group, and its own number.
type Child = (u32, u32, u32);

#[doc(alias = "pid_hash")]
#[doc(alias = "tasklist_lock")]
struct ProcessTable {
    entries: BTreeMap<u32, ProcessEntry>,
    last: u32,
    /// Children that live, but for orphans, and zombies. So a search for a child to wait for looks at one entry.
    living: BTreeSet<Child>,
    ended: BTreeSet<Child>,
    /// Living children that have stopped or gone on and were not waited for since.
    changed: BTreeSet<Child>,
    /// All processes that live, by the process above them.
    below: BTreeSet<(u32, u32)>,
    /// Waiters for children, by parent.
    waiters: BTreeMap<u32, Waiters>,
}

static TABLE: Mutex<ProcessTable> = Mutex::new(ProcessTable {
    entries: BTreeMap::new(),
    last: 0,
    living: BTreeSet::new(),
    ended: BTreeSet::new(),
    changed: BTreeSet::new(),
    below: BTreeSet::new(),
    waiters: BTreeMap::new(),
});

/// The children that a `wait4` is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Children {
    /// Any.
    Any,
    /// The child with this number.
    One(u32),
    /// Any of this process group.
    Group(u32),
}

/// Returns the range of all children of a parent, or of those in one group.
fn family(parent: u32, group: Option<u32>) -> RangeInclusive<Child> {
    (parent, group.unwrap_or(0), 0)..=(parent, group.unwrap_or(u32::MAX), u32::MAX)
}

impl ProcessTable {
    /// Enters a process that lives. If its parent has ended meanwhile, the first process takes that place, and the
    /// process is an orphan.
    fn enter(&mut self, process: Arc<Process>) {
        let (id, parent) = (process.id, process.parent());
        if matches!(self.entries.get(&parent), Some(ProcessEntry::Alive(_))) {
            self.living.insert((parent, process.group(), id));
        } else if parent != 0 {
            process.family.parent.store(FIRST, Ordering::Relaxed);
            process.family.above.store(FIRST, Ordering::Relaxed);
        }
        self.below.insert((process.family.above.load(Ordering::Relaxed), id));
        self.entries.insert(id, ProcessEntry::Alive(process));
    }

    /// Takes a process that lives out of the indexes; returns whether its parent may wait for it.
    fn leave_indexes(&mut self, process: &Process) -> bool {
        self.below.remove(&(process.family.above.load(Ordering::Relaxed), process.id));
        self.changed.remove(&(process.parent(), process.group(), process.id));
        self.living.remove(&(process.parent(), process.group(), process.id))
    }

    /// Returns the processes above this one, the nearest first.
    fn all_above(&self, process: &Process) -> impl Iterator<Item = u32> {
        let first = Some(process.family.above.load(Ordering::Relaxed));
        let above = |id: &u32| match self.entries.get(id) {
            Some(ProcessEntry::Alive(process)) => Some(process.family.above.load(Ordering::Relaxed)),
            _ => None,
        };
        core::iter::successors(first, above).take_while(|id| *id != 0)
    }

    /// Releases some of the processes below a process that has ended; returns whether there may be more. The process
    /// above it comes to be above them. Children that live become orphans: the first process is their parent in name,
    /// and need not wait for them. Zombies are removed.
    fn lets_go_of_children(&mut self, process: &Process) -> bool {
        let above = process.family.above.load(Ordering::Relaxed);
        for _ in 0..CHILDREN_AT_A_TIME {
            if let Some(&child) = self.ended.range(family(process.id, None)).next() {
                self.ended.remove(&child);
                self.entries.remove(&child.2);
                counters::uncount(Counter::Processes);
            } else if let Some(&(_, id)) = self.below.range((process.id, 0)..=(process.id, u32::MAX)).next() {
                self.below.remove(&(process.id, id));
                self.below.insert((above, id));
                if let Some(ProcessEntry::Alive(child)) = self.entries.get(&id) {
                    child.family.above.store(above, Ordering::Relaxed);
                    self.changed.remove(&(process.id, child.group(), id));
                    if self.living.remove(&(process.id, child.group(), id)) {
                        child.family.parent.store(FIRST, Ordering::Relaxed);
                    }
                }
            } else {
                return false;
            }
        }
        true
    }

    /// Records the ending of a process for its parent; without a living one it is forgotten. The process has no
    /// children any more. Returns the waiters for children of that parent, to be woken without the lock.
    #[must_use]
    fn has_ended(&mut self, process: &Process, ending: Ending, ticks: u64) -> Waiters {
        // A child may have been started while the process ended.
        while self.lets_go_of_children(process) {}
        self.waiters.remove(&process.id);
        let (parent, group) = (process.parent(), process.group());
        let keeps_zombies = match self.entries.get(&parent) {
            Some(ProcessEntry::Alive(parent)) => !parent.signals.discard_children(),
            _ => true,
        };
        if self.leave_indexes(process) {
            if !keeps_zombies {
                self.entries.remove(&process.id);
                counters::uncount(Counter::Processes);
                return self.waiters.remove(&parent).unwrap_or_default();
            }
            let _place = process.family.place.lock().take();
            self.ended.insert((parent, group, process.id));
            self.entries.insert(process.id, ProcessEntry::Zombie { group, ending, ticks, _place });
            self.waiters.remove(&parent).unwrap_or_default()
        } else {
            self.entries.remove(&process.id);
            counters::uncount(Counter::Processes);
            Waiters::default()
        }
    }
}

/// Releases some of the processes below a process that has ended; returns whether there may be more.
pub(super) fn let_go_of_children(process: &Process) -> bool {
    TABLE.lock().lets_go_of_children(process)
}

/// Records the ending of a process for its parent. Returns the waiters for children of that parent.
#[must_use]
pub(super) fn unregister(process: &Process, ending: Ending, ticks: u64) -> Waiters {
    TABLE.lock().has_ended(process, ending, ticks)
}

/// Reserves a number and builds a process with it. `EAGAIN` if there are too many.
pub(crate) fn create(make: impl FnOnce(u32) -> Result<Process, Errno>) -> Result<Arc<Process>, Errno> {
    let id = {
        let mut table = TABLE.lock();
        if table.entries.len() >= MAXIMUM_PROCESSES {
            return Err(Errno::EAGAIN);
        }
        let mut id = table.last;
        loop {
            id = if id >= 32767 { 1 } else { id + 1 };
            if !table.entries.contains_key(&id) {
                break;
            }
        }
        table.last = id;
        id
    };
    let process = Arc::new(make(id)?);
    TABLE.lock().enter(process.clone());
    counters::count(Counter::Processes);
    Ok(process)
}

/// Undoes [`create`] for a process that never got a worker.
pub(crate) fn discard(process: &Process) {
    let mut table = TABLE.lock();
    table.leave_indexes(process);
    table.entries.remove(&process.id);
    counters::uncount(Counter::Processes);
}

/// Returns whether a process is below another one.
pub(crate) fn is_below(process: &Process, above: &Process) -> bool {
    TABLE.lock().all_above(process).any(|id| id == above.id)
}

/// Fails with `EAGAIN` if so many processes are above this one that none may be below it.
pub(crate) fn require_depth(process: &Process) -> Result<(), Errno> {
    if TABLE.lock().all_above(process).count() < DEEPEST { Ok(()) } else { Err(Errno::EAGAIN) }
}

/// Returns the living process with this number.
#[doc(alias = "find_task_by_vpid")]
pub(crate) fn find(id: u32) -> Option<Arc<Process>> {
    match TABLE.lock().entries.get(&id) {
        Some(ProcessEntry::Alive(process)) => Some(process.clone()),
        _ => None,
    }
}

/// Returns the living process with the lowest number above this one.
pub(crate) fn next_after(id: u32) -> Option<Arc<Process>> {
    TABLE.lock().entries.range(id.saturating_add(1)..).find_map(|(_, entry)| match entry {
        ProcessEntry::Alive(process) => Some(process.clone()),
        ProcessEntry::Zombie { .. } => None,
    })
}

/// Returns the living process with the lowest number above this one for which `is_meant` holds.
pub(super) fn next_living(above: u32, is_meant: impl Fn(&Process) -> bool) -> Option<Arc<Process>> {
    let table = TABLE.lock();
    table.entries.range(above + 1..).find_map(|(_, entry)| match entry {
        ProcessEntry::Alive(process) if is_meant(process) => Some(process.clone()),
        _ => None,
    })
}

/// Finds the living process with the lowest number above `last` for which `is_meant` holds, in steps; `last` goes up to
/// it.
pub(super) async fn next_in_steps(
    caller: &Process,
    last: &mut u32,
    is_meant: impl Fn(&Process) -> bool,
) -> Option<Arc<Process>> {
    loop {
        let mut is_end = true;
        let mut found = None;
        for (number, (&id, entry)) in TABLE.lock().entries.range(*last + 1..).enumerate() {
            if number == MOST_LOOKED_AT {
                is_end = false;
                break;
            }
            *last = id;
            if let ProcessEntry::Alive(process) = entry
                && is_meant(process)
            {
                found = Some(process.clone());
                break;
            }
        }
        if found.is_some() || is_end {
            return found;
        }
        steps::pause(caller).await;
    }
}

/// Returns whether a process lives in this group for which `is_meant` holds.
pub(crate) fn group_has(group: u32, is_meant: impl Fn(&Process) -> bool) -> bool {
    let mut last = 0;
    while let Some(process) = next_living(last, |process| process.group() == group) {
        last = process.id;
        if is_meant(&process) {
            return true;
        }
    }
    false
}

/// Returns whether a process lives in this group.
pub(crate) fn group_exists(group: u32) -> bool {
    next_living(0, |process| process.group() == group).is_some()
}

/// Performs `setpgid`: puts the caller or one of its children, 0 meaning the caller, into a group that exists, or into
/// one of its own, which 0 means too. (There are no sessions, so groups cannot be in different ones.)
#[doc(alias = "setpgid")]
pub(crate) fn set_group(caller: &Process, id: i32, group: i32) -> Result<(), Errno> {
    let group = u32::try_from(group).map_err(|_| Errno::EINVAL)?;
    let id = u32::try_from(id).map_err(|_| Errno::ESRCH)?;
    let id = if id == 0 { caller.id } else { id };
    let process = find(id).ok_or(Errno::ESRCH)?;
    if id != caller.id && process.parent() != caller.id {
        return Err(Errno::ESRCH);
    }
    let group = if group == 0 { id } else { group };
    if group != id && !group_exists(group) {
        return Err(Errno::EPERM);
    }
    let mut table = TABLE.lock();
    let parent = process.parent();
    let old = process.family.group.swap(group, Ordering::Relaxed);
    if table.living.remove(&(parent, old, process.id)) {
        table.living.insert((parent, group, process.id));
    }
    if table.changed.remove(&(parent, old, process.id)) {
        table.changed.insert((parent, group, process.id));
    }
    Ok(())
}

/// Returns whether a process with this number exists, as a zombie too.
pub(crate) fn exists(id: u32) -> bool {
    TABLE.lock().entries.contains_key(&id)
}

/// Records for its parent that a process has stopped, or gone on. Returns the parent, the waiters for its children, to
/// be woken without the lock, and the signal that has stopped the process, or 0; `None` if there is no parent that
/// could wait.
#[must_use]
pub(super) fn report_change(process: &Process) -> Option<(Arc<Process>, Waiters, u8)> {
    let mut table = TABLE.lock();
    // Under the lock: of a stop and a continuation at one time, the later report has the state that lasts.
    let signal = process.signals.stopped_by();
    let status = if signal == 0 { types::CONTINUED } else { u32::from(signal) << 8 | 0x7f };
    let child = (process.parent(), process.group(), process.id);
    if !table.living.contains(&child) {
        return None;
    }
    process.family.change.store(status, Ordering::Relaxed);
    table.changed.insert(child);
    let Some(ProcessEntry::Alive(parent)) = table.entries.get(&child.0) else { return None };
    Some((parent.clone(), table.waiters.remove(&child.0).unwrap_or_default(), signal))
}

/// Returns whether a status of a child that lives is one that these options of `wait4` want.
fn is_wanted(status: u32, options: u32) -> bool {
    let option = if status == types::CONTINUED { types::WCONTINUED } else { types::WUNTRACED };
    options & option != 0
}

/// Returns a child that has stopped or gone on, as the options want it, with its status.
fn find_changed(table: &ProcessTable, parent: u32, which: Children, options: u32) -> Option<(Child, u32)> {
    let look = |child: Child| match table.entries.get(&child.2) {
        Some(ProcessEntry::Alive(process)) => {
            let status = process.family.change.load(Ordering::Relaxed);
            is_wanted(status, options).then_some((child, status))
        }
        _ => None,
    };
    let group = match which {
        Children::One(id) => {
            let Some(ProcessEntry::Alive(process)) = table.entries.get(&id) else { return None };
            let child = (parent, process.group(), id);
            return if table.changed.contains(&child) { look(child) } else { None };
        }
        Children::Group(group) => Some(group),
        Children::Any => None,
    };
    table.changed.range(family(parent, group)).find_map(|&child| look(child))
}

fn poll_for_child(
    parent: u32,
    which: Children,
    options: u32,
    waker: Option<&Waker>,
) -> Poll<Result<(u32, u32, u64), Errno>> {
    let mut table = TABLE.lock();
    let of = |children: &BTreeSet<Child>, table: &ProcessTable| match which {
        Children::Any => children.range(family(parent, None)).next().copied(),
        Children::Group(group) => children.range(family(parent, Some(group))).next().copied(),
        Children::One(id) => {
            let group = match table.entries.get(&id) {
                Some(ProcessEntry::Alive(child)) => Some(child.group()),
                // It keeps its group.
                Some(ProcessEntry::Zombie { group, .. }) => Some(*group),
                None => None,
            };
            group.map(|group| (parent, group, id)).filter(|child| children.contains(child))
        }
    };
    if let Some(child) = of(&table.ended, &table) {
        table.ended.remove(&child);
        let Some(ProcessEntry::Zombie { ending, ticks, .. }) = table.entries.remove(&child.2) else {
            return Poll::Ready(Err(Errno::ECHILD));
        };
        counters::uncount(Counter::Processes);
        return Poll::Ready(Ok((child.2, ending.status(), ticks)));
    }
    let wants_changes = options & (types::WUNTRACED | types::WCONTINUED) != 0;
    let changed = if wants_changes { find_changed(&table, parent, which, options) } else { None };
    if let Some((child, status)) = changed {
        table.changed.remove(&child);
        return Poll::Ready(Ok((child.2, status, 0)));
    }
    if of(&table.living, &table).is_none() {
        return Poll::Ready(Err(Errno::ECHILD));
    }
    if let Some(waker) = waker {
        table.waiters.entry(parent).or_default().register(waker).map_err(|_| Errno::ENOMEM)?;
    }
    Poll::Pending
}

/// Takes back a registration of [`Process::poll_child`].
pub(crate) fn forget_child_waiter(parent: u32, waker: &Waker) {
    let mut table = TABLE.lock();
    if let Some(waiters) = table.waiters.get_mut(&parent) {
        waiters.forget(waker);
        if waiters.is_empty() {
            table.waiters.remove(&parent);
        }
    }
}

impl Process {
    /// Looks for a zombie among its children and removes it, or for a child that has stopped or gone on if `options`
    /// want one; returns its number, its status, and the processor time that a zombie and its children have used.
    /// Pending if there are children but none of these.
    #[doc(alias = "do_wait")]
    #[doc(alias = "wait4")]
    pub(crate) fn poll_child(
        &self,
        which: Children,
        options: u32,
        waker: Option<&Waker>,
    ) -> Poll<Result<(u32, u32, u64), Errno>> {
        let found = poll_for_child(self.id, which, options, waker);
        if let Poll::Ready(Ok((_, _, ticks))) = found {
            self.family.add_ticks(ticks);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run;

    #[test]
    fn families_are_ranges_of_the_index() {
        let children: BTreeSet<Child> = [(1, 1, 9), (2, 1, 5), (2, 1, 7), (2, 8, 6), (3, 1, 4)].into();
        let of = |parent, group| children.range(family(parent, group)).map(|child| child.2).collect::<Vec<_>>();
        assert_eq!(of(2, None), [5, 7, 6]);
        assert_eq!((of(2, Some(1)), of(2, Some(8)), of(2, Some(2))), (vec![5, 7], vec![6], vec![]));
        assert_eq!(of(4, None), []);
    }

    /// In the tree, the processes below one that ends come to be below the process above it.
    #[test]
    fn orphans_stay_below_the_processes_above_their_parent() {
        let (sender, receiver) = std::sync::mpsc::channel();
        run(move |program| {
            let child = program.spawn(move |program| {
                let grandchild = program.spawn(|program| program.sleep_ns(50_000_000)).unwrap();
                sender.send(grandchild).unwrap();
                program.sleep_ns(10_000_000);
            });
            let child = child.unwrap();
            program.sleep_ns(5_000_000);
            let find = |id: usize| find(id as u32).unwrap();
            let (own, grandchild) = (program.process(), find(receiver.recv().unwrap()));
            assert!(is_below(&grandchild, &find(child)) && is_below(&grandchild, &own));
            assert!(!is_below(&own, &grandchild) && !is_below(&own, &own));
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert!(is_below(&grandchild, &own), "its parent in name is the first process");
            assert_eq!(grandchild.parent(), FIRST);
            assert_eq!(next_after(grandchild.id - 1).map(|process| process.id), Some(grandchild.id));
            assert!(require_depth(&grandchild).is_ok());
        });
    }

    #[test]
    fn processes_are_not_stacked_without_limit() {
        fn descend(program: &mut crate::testing::Program, depth: usize) {
            match program.spawn(move |program| descend(program, depth + 1)) {
                Ok(child) => assert_eq!(program.wait_for(child), Ok((child, 0))),
                Err(error) => {
                    assert_eq!(error, Errno::EAGAIN);
                    assert!((DEEPEST - 2..=DEEPEST).contains(&depth), "{depth}");
                }
            }
        }
        run(|program| descend(program, 1));
    }
}
