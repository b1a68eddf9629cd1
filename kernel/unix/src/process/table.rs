//! The table of processes: numbers, zombies, and the indexes by parent, group, session and ancestor.
//!
//! # Orphaned groups
//!
//! A process group is *orphaned* if no member has a parent in another group of the same session: no shell is left that
//! could continue it, so terminals do not stop its members, and those that are stopped when that happens are woken
//! (POSIX, 3.264). A member with such a parent *anchors* its group. The anchors of each group are counted when parents,
//! groups and sessions change, so that the question costs no search.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use core::sync::atomic::Ordering;
use core::task::{Poll, Waker};

use abi_unix::{Counter, Errno, types};
use smallvec::SmallVec;
use spin::Mutex;
use waiters::Waiters;

use crate::observing::counters;
use crate::process::accounts::MAXIMUM_PROCESSES;
use crate::process::exit_status::Ending;
use crate::process::family::{DEEPEST, ProcessPlace};
use crate::process::identity::Numbers;
use crate::process::lifetime::Lifetime;
use crate::process::{FIRST, Group, Process};
use crate::scheduling::Pace;
use crate::scheduling::standing::UsedTime;
use crate::scheduling::steps::{self, Ends};

/// Number of children that one such step releases: each is in several indexes.
const CHILDREN_AT_A_TIME: usize = 8;
/// Number of these to which a signal is sent.
const SIGNALLED_AT_A_TIME: usize = 8;
/// Number of processes that one step of a search looks at.
const MOST_LOOKED_AT: usize = 256;
enum ProcessEntry {
    Alive(Arc<Process>),
    /// `time`: the processor time that it and its children have used. `parent`: the process that may wait for it.
    Zombie {
        parent: u32,
        group: Group,
        users: UsersOfAnEnded,
        ending: Ending,
        time: UsedTime,
        lifetime: Option<Arc<Lifetime>>,
        _place: Option<ProcessPlace>,
    },
}

/// Users of a process that has ended, which decide who may signal its zombie.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsersOfAnEnded {
    /// Its user of COPS.
    pub user: u64,
    /// Its users of Linux.
    pub numbers: Numbers,
}

/// A zombie, as a process sees it that wants to signal it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenZombie {
    /// Its users.
    pub users: UsersOfAnEnded,
    /// Its session.
    pub session: u32,
    /// Whether it is below that process.
    pub is_below: bool,
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
    /// All processes, zombies too, by their groups and by their sessions.
    groups: BTreeSet<(u32, u32)>,
    sessions: BTreeSet<(u32, u32)>,
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
    groups: BTreeSet::new(),
    sessions: BTreeSet::new(),
    waiters: BTreeMap::new(),
});

/// Numbers of anchors of groups that have any. The innermost lock.
static ANCHORS: Mutex<BTreeMap<u32, u32>> = Mutex::new(BTreeMap::new());

/// Returns whether a process group is orphaned.
#[doc(alias = "is_current_pgrp_orphaned")]
pub(crate) fn is_orphaned(group: u32) -> bool {
    !ANCHORS.lock().contains_key(&group)
}

/// Makes a process the anchor of this group, 0 being none, instead of the one that it has been; returns whether that
/// has lost its last anchor.
fn set_anchor(process: &Process, group: u32) -> bool {
    let before = process.family.anchors.swap(group, Ordering::Relaxed);
    if before == group {
        return false;
    }
    let mut anchors = ANCHORS.lock();
    if group != 0 {
        *anchors.entry(group).or_default() += 1;
    }
    let Some(count) = anchors.get_mut(&before) else { return false };
    *count -= 1;
    let is_last = *count == 0;
    if is_last {
        anchors.remove(&before);
    }
    is_last
}

/// Some groups that have become orphaned.
#[derive(Default)]
pub(super) struct Orphaned {
    groups: [u32; CHILDREN_AT_A_TIME],
    count: usize,
}

impl Orphaned {
    fn add(&mut self, group: u32) {
        self.groups[self.count] = group;
        self.count += 1;
    }

    /// Returns the groups.
    pub(super) fn groups(&self) -> &[u32] {
        &self.groups[..self.count]
    }
}

/// News of children that were let go, to be told without the table's lock.
#[derive(Default)]
pub(super) struct NewsOfChildren {
    /// Children that live, and the signals that they want to get when their parent ends.
    pub signals: SmallVec<[(Arc<Process>, u8); SIGNALLED_AT_A_TIME]>,
    /// The process that has inherited zombies, one of these with its ending, and the waiters for them.
    pub inherited: Option<(Arc<Process>, u32, Ending, Waiters)>,
}

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
        self.join(id, process.group_and_session());
        self.count_anchor(&process);
        self.entries.insert(id, ProcessEntry::Alive(process));
    }

    /// Enters a number into its group and session.
    fn join(&mut self, id: u32, Group { group, session }: Group) {
        self.groups.insert((group, id));
        self.sessions.insert((session, id));
    }

    /// Takes a number out of its group and session.
    fn quit(&mut self, id: u32, Group { group, session }: Group) {
        self.groups.remove(&(group, id));
        self.sessions.remove(&(session, id));
    }

    /// Removes a zombie.
    fn bury(&mut self, id: u32) -> Option<(Ending, UsedTime)> {
        let removed = self.entries.remove(&id);
        let Some(ProcessEntry::Zombie { group, ending, time, lifetime, .. }) = removed else { return None };
        self.quit(id, group);
        if let Some(lifetime) = lifetime {
            lifetime.is_over();
        }
        counters::uncount(Counter::Processes);
        Some((ending, time))
    }

    /// Returns the group and the session of a process or zombie.
    fn group_of(&self, id: u32) -> Option<Group> {
        match self.entries.get(&id)? {
            ProcessEntry::Alive(process) => Some(process.group_and_session()),
            ProcessEntry::Zombie { group, .. } => Some(*group),
        }
    }

    /// Returns a zombie as a process sees it.
    fn zombie(&self, id: u32, seen_by: &Process) -> Option<SeenZombie> {
        let Some(ProcessEntry::Zombie { parent, group, users, .. }) = self.entries.get(&id) else { return None };
        let is_below = *parent == seen_by.id
            || matches!(self.entries.get(parent), Some(ProcessEntry::Alive(parent))
                if self.all_above(parent).any(|id| id == seen_by.id));
        Some(SeenZombie { users: *users, session: group.session, is_below })
    }

    /// Returns whether a number is a process's, a group's or a session's.
    fn is_used(&self, id: u32) -> bool {
        let members = (id, 0)..=(id, u32::MAX);
        self.entries.contains_key(&id)
            || self.groups.range(members.clone()).next().is_some()
            || self.sessions.range(members).next().is_some()
    }

    /// Returns whether a group has a member, a zombie too, in this session.
    fn is_in_session(&self, group: u32, session: u32) -> bool {
        // All members are in one session.
        let first = self.groups.range((group, 0)..=(group, u32::MAX)).next();
        first.is_some_and(|(_, id)| self.sessions.contains(&(session, *id)))
    }

    /// Counts a process as an anchor of its group if it is one now; returns whether the group of which it has been one
    /// has lost its last.
    fn count_anchor(&self, process: &Process) -> bool {
        let own = process.group_and_session();
        let is_anchor = match self.entries.get(&process.parent()) {
            Some(ProcessEntry::Alive(parent)) => {
                let above = parent.group_and_session();
                above.session == own.session
                    && above.group != own.group
                    && self.living.contains(&(parent.id, own.group, process.id))
            }
            _ => false,
        };
        set_anchor(process, if is_anchor { own.group } else { 0 })
    }

    /// Moves a process to another group and session.
    fn move_to(&mut self, process: &Process, to: Group) {
        let (id, parent, before) = (process.id, process.parent(), process.group_and_session());
        self.quit(id, before);
        self.join(id, to);
        process.family.group.store(to.group, Ordering::Relaxed);
        process.family.session.store(to.session, Ordering::Relaxed);
        if self.living.remove(&(parent, before.group, id)) {
            self.living.insert((parent, to.group, id));
        }
        if self.changed.remove(&(parent, before.group, id)) {
            self.changed.insert((parent, to.group, id));
        }
        self.count_anchor(process);
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

    /// Returns the nearest process above this one that inherits the children of those below it.
    fn heir_of(&self, process: &Process) -> Option<&Arc<Process>> {
        self.all_above(process).find_map(|id| match self.entries.get(&id) {
            Some(ProcessEntry::Alive(above)) if above.family.inherits.load(Ordering::Relaxed) => Some(above),
            _ => None,
        })
    }

    /// Gives a zombie to the heir of its parent, or removes it if there is none that waits for children.
    fn bequeath(&mut self, (parent, group, id): Child, heir: Option<&Arc<Process>>, news: &mut NewsOfChildren) {
        self.ended.remove(&(parent, group, id));
        let heir = heir.filter(|heir| !heir.signals.discard_children());
        let (Some(heir), Some(ProcessEntry::Zombie { ending, parent, .. })) = (heir, self.entries.get_mut(&id)) else {
            self.bury(id);
            return;
        };
        *parent = heir.id;
        let ending = *ending;
        self.ended.insert((heir.id, group, id));
        if news.inherited.is_none() {
            let waiters = self.waiters.remove(&heir.id).unwrap_or_default();
            news.inherited = Some((heir.clone(), id, ending, waiters));
        }
    }

    /// Releases some of the processes below a process that has ended; returns whether there may be more. The process
    /// above it comes to be above them. Its children go to its heir. Without one those that live become orphans: the
    /// first process is their parent in name, and need not wait for them; and zombies are removed. Groups that have
    /// become orphaned are added to `orphaned`, which is empty, as `news` is.
    fn lets_go_of_children(&mut self, process: &Process, orphaned: &mut Orphaned, news: &mut NewsOfChildren) -> bool {
        let above = process.family.above.load(Ordering::Relaxed);
        // Looked for when the first child is found: most processes have none.
        let mut heir = None;
        for _ in 0..CHILDREN_AT_A_TIME {
            if let Some(&child) = self.ended.range(family(process.id, None)).next() {
                let heir = heir.get_or_insert_with(|| self.heir_of(process).cloned());
                self.bequeath(child, heir.as_ref(), news);
            } else if let Some(&(_, id)) = self.below.range((process.id, 0)..=(process.id, u32::MAX)).next() {
                self.below.remove(&(process.id, id));
                self.below.insert((above, id));
                if let Some(ProcessEntry::Alive(child)) = self.entries.get(&id) {
                    let child = child.clone();
                    child.family.above.store(above, Ordering::Relaxed);
                    let has_changed = self.changed.remove(&(process.id, child.group(), id));
                    if self.living.remove(&(process.id, child.group(), id)) {
                        let heir = heir.get_or_insert_with(|| self.heir_of(process).cloned());
                        let parent = heir.as_ref().map_or(FIRST, |heir| heir.id);
                        child.family.parent.store(parent, Ordering::Relaxed);
                        if heir.is_some() {
                            self.living.insert((parent, child.group(), id));
                            if has_changed {
                                self.changed.insert((parent, child.group(), id));
                            }
                        }
                        let signal = child.family.signal_of_orphan.load(Ordering::Relaxed);
                        if signal != 0 {
                            news.signals.push((child.clone(), signal));
                        }
                    }
                    if self.count_anchor(&child) {
                        orphaned.add(child.group());
                    }
                    if news.signals.len() == SIGNALLED_AT_A_TIME {
                        return true;
                    }
                }
            } else {
                return false;
            }
        }
        true
    }

    /// Records the ending of a process for its parent; without a living one it is forgotten. The process has no
    /// children any more. Returns the waiters for children of that parent, to be woken without the lock, and whether
    /// the process was the last anchor of its group.
    #[must_use]
    fn has_ended(&mut self, process: &Process, ending: Ending, time: UsedTime) -> (Waiters, bool) {
        // A child may have been started while the process ended, which is in its parent's group.
        while self.lets_go_of_children(process, &mut Orphaned::default(), &mut NewsOfChildren::default()) {}
        let is_last_anchor = set_anchor(process, 0);
        (self.leaves_zombie(process, ending, time), is_last_anchor)
    }

    fn leaves_zombie(&mut self, process: &Process, ending: Ending, time: UsedTime) -> Waiters {
        self.waiters.remove(&process.id);
        let (parent, group) = (process.parent(), process.group_and_session());
        let keeps_zombies = match self.entries.get(&parent) {
            Some(ProcessEntry::Alive(parent)) => !parent.signals.discard_children(),
            _ => true,
        };
        if self.leave_indexes(process) {
            if !keeps_zombies {
                self.leaves_nothing(process, group);
                return self.waiters.remove(&parent).unwrap_or_default();
            }
            let _place = process.family.place.lock().take();
            let lifetime = process.lifetime.get().cloned();
            self.ended.insert((parent, group.group, process.id));
            let users = UsersOfAnEnded { user: process.authority.user(), numbers: process.identity_value().users };
            let zombie = ProcessEntry::Zombie { parent, group, users, ending, time, lifetime, _place };
            self.entries.insert(process.id, zombie);
            self.waiters.remove(&parent).unwrap_or_default()
        } else {
            self.leaves_nothing(process, group);
            Waiters::default()
        }
    }

    /// Forgets a process that no parent waits for.
    fn leaves_nothing(&mut self, process: &Process, group: Group) {
        self.entries.remove(&process.id);
        self.quit(process.id, group);
        counters::uncount(Counter::Processes);
        if let Some(lifetime) = process.lifetime.get() {
            lifetime.is_over();
        }
    }
}

/// Releases some of the processes below a process that has ended; returns whether there may be more, the groups that
/// have become orphaned, and the news of children.
pub(super) fn let_go_of_children(process: &Process) -> (bool, Orphaned, NewsOfChildren) {
    let (mut orphaned, mut news) = (Orphaned::default(), NewsOfChildren::default());
    let is_more = TABLE.lock().lets_go_of_children(process, &mut orphaned, &mut news);
    (is_more, orphaned, news)
}

/// Records the ending of a process for its parent. Returns the waiters for children of that parent, and whether the
/// process's group has become orphaned.
#[must_use]
pub(super) fn unregister(process: &Process, ending: Ending, time: UsedTime) -> (Waiters, bool) {
    TABLE.lock().has_ended(process, ending, time)
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
            if !table.is_used(id) {
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
    set_anchor(process, 0);
    table.leaves_nothing(process, process.group_and_session());
}

/// Returns whether a process is below another one.
pub(crate) fn is_below(process: &Process, above: &Process) -> bool {
    TABLE.lock().all_above(process).any(|id| id == above.id)
}

/// Adds the users of the processes above this one, the nearest first: at most [`DEEPEST`].
pub(super) fn add_users_above(process: &Process, users: &mut Vec<u64>) {
    let table = TABLE.lock();
    let above = table.all_above(process).take(DEEPEST);
    users.extend(above.filter_map(|id| match table.entries.get(&id) {
        Some(ProcessEntry::Alive(above)) => Some(above.authority.user()),
        _ => None,
    }));
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

/// Returns the lifetime of a process or zombie.
pub(super) fn lifetime_of(id: u32) -> Option<Arc<Lifetime>> {
    match TABLE.lock().entries.get_mut(&id)? {
        ProcessEntry::Alive(process) => Some(process.lifetime().clone()),
        ProcessEntry::Zombie { lifetime, .. } => {
            Some(lifetime.get_or_insert_with(|| Arc::new(Lifetime::of_the_ended())).clone())
        }
    }
}

/// Returns the zombie with this number as a process sees it.
pub(super) fn zombie(id: u32, seen_by: &Process) -> Option<SeenZombie> {
    TABLE.lock().zombie(id, seen_by)
}

/// Returns the first zombie of a group above a number as a process sees it, with its own number, if it is among the
/// next members.
pub(super) fn next_zombie_of(group: u32, above: u32, seen_by: &Process) -> Option<(u32, SeenZombie)> {
    let table = TABLE.lock();
    let mut members = table.groups.range((group, above.checked_add(1)?)..=(group, u32::MAX)).take(MOST_LOOKED_AT);
    members.find_map(|&(_, id)| Some((id, table.zombie(id, seen_by)?)))
}

/// Returns the living process with the lowest number above this one.
pub(crate) fn next_after(id: u32) -> Option<Arc<Process>> {
    TABLE.lock().entries.range(id.saturating_add(1)..).find_map(|(_, entry)| match entry {
        ProcessEntry::Alive(process) => Some(process.clone()),
        ProcessEntry::Zombie { .. } => None,
    })
}

/// A walk over living processes in the order of their numbers. The table is unlocked between two of them, so that
/// processes may come and go meanwhile.
pub(crate) struct Walk {
    /// The group whose members are visited; `None` for all processes.
    group: Option<u32>,
    /// Number of the last process that was looked at.
    last: u32,
}

impl Walk {
    /// Begins a walk over all processes above a number.
    pub(crate) fn above(id: u32) -> Walk {
        Walk { group: None, last: id }
    }

    /// Begins a walk over the members of a group.
    pub(super) fn of_group(group: u32) -> Walk {
        Walk { group: Some(group), last: 0 }
    }

    /// Returns the next process, however many zombies come before it.
    pub(super) fn next(&mut self) -> Option<Arc<Process>> {
        loop {
            if let Some(found) = self.look() {
                return found;
            }
        }
    }

    /// Returns the next process, with a pause for `payer` after each look at some zombies.
    pub(super) async fn next_in_steps<P: Ends>(&mut self, payer: &P) -> Option<Arc<Process>> {
        loop {
            match self.look() {
                Some(found) => return found,
                None => steps::pause(payer).await,
            }
        }
    }

    /// Returns the next process, with a step of a coroutine of the kernel after each look at some zombies.
    pub(crate) async fn next_at_pace(&mut self, pace: &mut Pace) -> Option<Arc<Process>> {
        loop {
            match self.look() {
                Some(found) => return found,
                None => pace.step().await,
            }
        }
    }

    /// Looks at some entries of the table for one that lives. `None` if there are more to look at.
    pub(super) fn look(&mut self) -> Option<Option<Arc<Process>>> {
        let table = TABLE.lock();
        let Some(first) = self.last.checked_add(1) else { return Some(None) };
        match self.group {
            None => self.look_at(table.entries.range(first..).map(|(&id, entry)| (id, entry))),
            Some(group) => {
                let members = table.groups.range((group, first)..=(group, u32::MAX));
                self.look_at(members.filter_map(|&(_, id)| table.entries.get(&id).map(|entry| (id, entry))))
            }
        }
    }

    fn look_at<'t>(&mut self, entries: impl Iterator<Item = (u32, &'t ProcessEntry)>) -> Option<Option<Arc<Process>>> {
        for (number, (id, entry)) in entries.enumerate() {
            if number == MOST_LOOKED_AT {
                return None;
            }
            self.last = id;
            if let ProcessEntry::Alive(process) = entry {
                return Some(Some(process.clone()));
            }
        }
        Some(None)
    }
}

/// Returns the session of a group; `None` if no process is in it, not even a zombie.
pub(crate) fn session_of_group(group: u32) -> Option<u32> {
    let table = TABLE.lock();
    let (_, id) = table.groups.range((group, 0)..=(group, u32::MAX)).next()?;
    table.group_of(*id).map(|group| group.session)
}

/// Returns the group and the session of a process, which a zombie keeps.
pub(crate) fn group_of(id: u32) -> Option<Group> {
    TABLE.lock().group_of(id)
}

/// Performs `setpgid`: puts the caller or one of its children, 0 meaning the caller, into a group of the caller's
/// session, or into one of its own, which 0 means too. Returns the process, whose children are still to be
/// [counted](count_anchors_below). A zombie stays where it is.
#[doc(alias = "setpgid")]
pub(crate) fn set_group(caller: &Arc<Process>, id: i32, group: i32) -> Result<Arc<Process>, Errno> {
    let group = u32::try_from(group).map_err(|_| Errno::EINVAL)?;
    let id = u32::try_from(id).map_err(|_| Errno::ESRCH)?;
    let id = if id == 0 { caller.id } else { id };
    let group = if group == 0 { id } else { group };
    let mut table = TABLE.lock();
    let process = match table.entries.get(&id) {
        Some(ProcessEntry::Alive(process)) => process.clone(),
        // It has executed its last program.
        Some(ProcessEntry::Zombie { group, .. }) if table.ended.contains(&(caller.id, group.group, id)) => {
            return Err(Errno::EACCES);
        }
        _ => return Err(Errno::ESRCH),
    };
    let session = caller.session();
    if id != caller.id {
        if process.parent() != caller.id {
            return Err(Errno::ESRCH);
        }
        if process.session() != session {
            return Err(Errno::EPERM);
        }
        if process.family.has_executed.load(Ordering::Relaxed) {
            return Err(Errno::EACCES);
        }
    }
    let leads_session = process.session() == id;
    if leads_session || group != id && !table.is_in_session(group, session) {
        return Err(Errno::EPERM);
    }
    table.move_to(&process, Group { group, session });
    Ok(process)
}

/// Performs `setsid`. The caller's children are still to be [counted](count_anchors_below).
#[doc(alias = "setsid")]
pub(crate) fn set_session(caller: &Process) -> Result<u32, Errno> {
    let mut table = TABLE.lock();
    let id = caller.id;
    if table.groups.range((id, 0)..=(id, u32::MAX)).next().is_some() {
        return Err(Errno::EPERM);
    }
    table.move_to(caller, Group { group: id, session: id });
    caller.set_no_terminal(false);
    Ok(id)
}

/// Returns whether a process has children that live.
pub(crate) fn has_children(process: &Process) -> bool {
    TABLE.lock().living.range(family(process.id, None)).next().is_some()
}

/// Counts the anchors among the children of a process anew, after it has moved to another group, in steps. A child that
/// moves meanwhile counts itself.
pub(crate) async fn count_anchors_below<P: Ends>(payer: &P, process: &Process) {
    let mut next = (process.id, 0, 0);
    loop {
        let mut last = None;
        {
            let table = TABLE.lock();
            for &child in table.living.range(next..=(process.id, u32::MAX, u32::MAX)).take(steps::ENTRIES) {
                last = Some(child);
                if let Some(ProcessEntry::Alive(child)) = table.entries.get(&child.2) {
                    table.count_anchor(child);
                }
            }
        }
        let Some((parent, group, id)) = last else { return };
        next = (parent, group, id + 1);
        steps::pause(payer).await;
    }
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
) -> Poll<Result<(u32, u32, UsedTime), Errno>> {
    let mut table = TABLE.lock();
    let of = |children: &BTreeSet<Child>, table: &ProcessTable| match which {
        Children::Any => children.range(family(parent, None)).next().copied(),
        Children::Group(group) => children.range(family(parent, Some(group))).next().copied(),
        Children::One(id) => {
            let group = table.group_of(id).map(|group| group.group);
            group.map(|group| (parent, group, id)).filter(|child| children.contains(child))
        }
    };
    let (wants_ends, stays) = (options & types::WEXITED != 0, options & types::WNOWAIT != 0);
    if let Some(child) = of(&table.ended, &table).filter(|_| wants_ends) {
        let id = child.2;
        if let Some(ProcessEntry::Zombie { ending, .. }) = table.entries.get(&id).filter(|_| stays) {
            return Poll::Ready(Ok((id, ending.status(), UsedTime::default())));
        }
        table.ended.remove(&child);
        let Some((ending, time)) = table.bury(id) else { return Poll::Ready(Err(Errno::ECHILD)) };
        return Poll::Ready(Ok((id, ending.status(), time)));
    }
    let wants_changes = options & (types::WUNTRACED | types::WCONTINUED) != 0;
    let changed = if wants_changes { find_changed(&table, parent, which, options) } else { None };
    if let Some((child, status)) = changed {
        if !stays {
            table.changed.remove(&child);
        }
        return Poll::Ready(Ok((child.2, status, UsedTime::default())));
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
    /// Looks for a child that has ended, stopped or gone on, as `options` want one, and removes it from those, and a
    /// zombie altogether, unless the change is to stay; returns its number, its status, and the processor time that a
    /// zombie and its children have used. Pending if there are living children but none of these.
    #[doc(alias = "do_wait")]
    #[doc(alias = "wait4")]
    pub(crate) fn poll_child(
        &self,
        which: Children,
        options: u32,
        waker: Option<&Waker>,
    ) -> Poll<Result<(u32, u32, UsedTime), Errno>> {
        let found = poll_for_child(self.id, which, options, waker);
        if let Poll::Ready(Ok((_, _, time))) = found {
            self.family.add_time(time);
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
