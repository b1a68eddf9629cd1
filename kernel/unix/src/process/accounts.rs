//! Accounts of kernel memory and other scarce things: the amounts and limits of each process.
//!
//! **EVERY-BYTE**: every byte of memory that the kernel keeps for a process is charged to an account, from before it is
//! taken until after it is given back. An object holds its own [`Charge`], and an object that can only be made with a
//! charge cannot be forgotten.
//!
//! # The problem
//!
//! A process makes the kernel keep memory in many ways: pipes and their contents, sockets, files, calls in flight, page
//! tables, processes. One limit for the whole machine refuses every process when one has taken everything. So each
//! process has an [`Account`], and a limit of its own for each [`Resource`].
//!
//! # The choice
//!
//! *Limits* are inherited, and are set by `prlimit64`. A limit that was set for a process holds for that process and
//! for everything that it starts afterwards, together: a charge is made in the account of the process and in those of
//! all ancestors that *bound* their descendants. A child of the first process begins with a [share](SHARE) of the
//! machine and bounds its descendants; so there is no way to more memory through more processes. The first process has
//! no limit.
//!
//! *The machine* is the last account above all others. It has less for objects and files than its memory, so that
//! programs and their pages go on while it is exhausted. And the last of it is for processes that have less: a process
//! must leave as much as it has itself (up to [`HEADROOM`]). So processes that hoard refuse themselves, however many
//! they are, while there is something left for small ones. The first process may take the part that others must leave.
//!
//! *Fresh memory* is ensured by [`Account::admit`] (ADMISSION): before a call starts to act there is so much free
//! memory that none of its small allocations fails. A worker's wait needs none of that: its memory was [kept
//! free](memory::heap::Kept) when the worker was made.
//!
//! *Slots of the kernel's executor* are shared out as calls are: the machine has as many for calls as the executor has,
//! without those that are kept for workers, so that a process can be started while others have all calls that they may.
//! (A slot that was used once stays, for the next call. All together are bounded by the executor's table: a few MiB.)
//!
//! *Connections* are charged by the network stack, which keeps them when no process has them: before they are accepted,
//! and after they were closed ([`Shares`](crate::network::shares::Shares)). No process has more of them than there are
//! left for others, nor more records of ended ones; a process that may not have a record ends its connections without.
//!
//! Buffers of connections are charged as they grow. A stranger can make them grow, and so what only makes connections
//! faster takes no more than half of any limit.
//!
//! *Files* in memory are charged by the page, to the process whose write makes the page, also when that has ended.
//! Names and inodes are charged likewise to the process that makes them, until they are gone. All together have the
//! file system's own limit too. Segments of shared memory and sets of semaphores, which stay too, count as files here.
//!
//! If the machine has nothing left, although every process is within its limits, the [OOM
//! killer](crate::process::oom_killer::end_largest) is called, in a coroutine of its own, because the refused caller
//! may hold locks.
//!
//! # Rejected
//!
//! Finding the owner at every allocation (a header for each object, or a heap for each process): the cost of the hot
//! path doubles, and shared slabs would no longer be shared. Charging each call in flight: they are charged in
//! [batches](Batch), under the lock that each call takes anyway.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use abi_queue::pages::PAGE_SIZE;
use abi_unix::Errno;
use abi_unix::types::limit;
use memory::faults;
use spin::{Mutex, Once};

/// A resource of which a process has an amount and a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Resource {
    /// Bytes of kernel objects: they go with the process.
    Memory,
    /// Bytes of what stays when the process ends: files in memory, segments of shared memory, sets of semaphores.
    Files,
    /// Asynchronous calls in flight.
    Calls,
    /// Processes that it has started, alive or zombies.
    Processes,
}

/// Number of resources.
pub(crate) const RESOURCES: usize = 4;

impl Resource {
    /// All resources.
    pub(crate) const ALL: [Resource; RESOURCES] =
        [Resource::Memory, Resource::Files, Resource::Calls, Resource::Processes];

    /// Returns the error of a call that would take too much of it, as on Linux.
    pub(crate) fn refusal(self) -> Errno {
        match self {
            Resource::Memory => Errno::ENOMEM,
            Resource::Files => Errno::ENOSPC,
            Resource::Calls => Errno::EBUSY,
            Resource::Processes => Errno::EAGAIN,
        }
    }
}

/// No limit.
pub(crate) const UNLIMITED: usize = usize::MAX;

/// Divisor of a resource's total for a child of the first process, together with everything that it starts.
pub(crate) const SHARE: usize = 8;

/// Divisor of a resource's total for the greatest part that a process must leave to those that have less.
const HEADROOM: usize = 16;

/// Greatest number of accounts above an account.
const DEEPEST: usize = 16;

/// Slots of the executor, out of which calls and processes are counted; some are kept for the workers of processes.
const SLOTS: usize = 1 << 18;
const SLOTS_OF_WORKERS: usize = 1 << 15;

/// The amount of a resource for all processes together, and the amount used.
struct Total {
    used: AtomicUsize,
    limit: AtomicUsize,
}

impl Total {
    const fn new() -> Total {
        Total { used: AtomicUsize::new(0), limit: AtomicUsize::new(UNLIMITED) }
    }
}

/// The machine's own account. Files and objects are two resources of a process, but one of the machine.
struct Machine {
    memory: Total,
    calls: Total,
    processes: Total,
}

static MACHINE: Machine = Machine { memory: Total::new(), calls: Total::new(), processes: Total::new() };

impl Machine {
    fn total(&self, resource: Resource) -> &Total {
        match resource {
            Resource::Memory | Resource::Files => &self.memory,
            Resource::Calls => &self.calls,
            Resource::Processes => &self.processes,
        }
    }
}

/// Free memory that a call finds at its start, for the small allocations that must not fail: for the first hart, and
/// for each further one, since each may be in the middle of a call.
const RESERVE: usize = 256 * 1024;
const RESERVE_OF_A_HART: usize = 64 * 1024;

/// Both together.
static ADMISSION: AtomicUsize = AtomicUsize::new(RESERVE + RESERVE_OF_A_HART);

/// Returns the free memory without which no call that creates something is begun.
fn reserve() -> usize {
    ADMISSION.load(Ordering::Relaxed)
}

/// Number of processes that can exist.
pub(crate) const MAXIMUM_PROCESSES: usize = 4096;
/// Number of asynchronous calls that one process can have in flight; more fail with `EBUSY`, which no call that can
/// wait returns for another reason, so that a runtime knows to wait for completions and to try again.
pub(crate) const MAXIMUM_CALLS: usize = 65536;
/// Greatest number of descriptors of a process, as on Linux.
pub(crate) const MAXIMUM_DESCRIPTORS: usize = 1 << 20;
/// Limit in force at first. (Linux's default is 1,024; servers raise it, so the limit here is a server's.)
const USUAL_DESCRIPTORS: usize = 16384;

/// Bytes that a wait of one worker can take: the operation, and its places in lists of waiters.
pub(crate) const MEMORY_OF_A_WAIT: usize = 1024;

/// Sets the machine's totals. Called once, when memory is there and before there are processes.
pub(crate) fn start(harts: usize) {
    ADMISSION.store(RESERVE + RESERVE_OF_A_HART * harts, Ordering::Relaxed);
    // Large allocations can fail, and leave this reserve to small ones.
    memory::heap::set_reserve_of_small(RESERVE / 2 + RESERVE_OF_A_HART / 2 * harts);
    let bytes = memory::frames::total_frames() * PAGE_SIZE;
    limit_machine(bytes / 4 * 3, SLOTS - SLOTS_OF_WORKERS, MAXIMUM_PROCESSES);
}

fn limit_machine(bytes: usize, calls: usize, processes: usize) {
    for (total, limit) in [(&MACHINE.memory, bytes), (&MACHINE.calls, calls), (&MACHINE.processes, processes)] {
        total.limit.store(limit, Ordering::Relaxed);
    }
}

/// Returns the share of a resource with which a child of the first process begins.
pub(crate) fn share_of(resource: Resource) -> usize {
    let all = MACHINE.total(resource).limit.load(Ordering::Relaxed);
    match resource {
        // A share of the memory, not of the machine's total for objects.
        Resource::Memory | Resource::Files => all / 3 * 4 / SHARE,
        Resource::Calls => MAXIMUM_CALLS,
        Resource::Processes => all / 4,
    }
}

/// A limit that is in force, and the largest that the process may choose itself.
#[doc(alias = "rlimit")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResourceLimit {
    /// The limit in force.
    pub soft: usize,
    /// The largest limit that a process may set without privilege.
    pub hard: usize,
}

impl ResourceLimit {
    /// Creates a limit with one value for both.
    pub(crate) const fn both(limit: usize) -> ResourceLimit {
        ResourceLimit { soft: limit, hard: limit }
    }
}

const SETTINGS: usize = limit::COUNT as usize;

/// Returns the settings of the first process.
fn first_settings() -> [ResourceLimit; SETTINGS] {
    let mut settings = [ResourceLimit::both(UNLIMITED); SETTINGS];
    // No core files, as on most systems, unless a process asks for them.
    settings[limit::CORE as usize].soft = 0;
    settings[limit::STACK as usize].soft = program::layout::STACK_SIZE as usize;
    settings[limit::DESCRIPTORS as usize] = ResourceLimit { soft: USUAL_DESCRIPTORS, hard: MAXIMUM_DESCRIPTORS };
    settings
}

#[derive(Debug)]
struct ResourceLine {
    /// Amount of the process and of those that it bounds.
    used: AtomicUsize,
    /// Amount of the process alone.
    own: AtomicUsize,
    soft: AtomicUsize,
    hard: AtomicUsize,
}

impl ResourceLine {
    fn new(limit: ResourceLimit) -> ResourceLine {
        ResourceLine {
            used: AtomicUsize::new(0),
            own: AtomicUsize::new(0),
            soft: AtomicUsize::new(limit.soft),
            hard: AtomicUsize::new(limit.hard),
        }
    }

    fn limit(&self) -> ResourceLimit {
        ResourceLimit { soft: self.soft.load(Ordering::Relaxed), hard: self.hard.load(Ordering::Relaxed) }
    }
}

/// Adds to a count that may not exceed its limit; returns the count before. (Relaxed, here and everywhere: the counts
/// order nothing. Each is changed by single steps, so that none is ever beyond its limit, not even for a moment.)
fn add_within(count: &AtomicUsize, amount: usize, limit: usize) -> Option<usize> {
    let add = |count: usize| count.checked_add(amount).filter(|&sum| sum <= limit);
    count.try_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()
}

/// A process's amounts and limits of all resources.
#[doc(alias = "cgroup")]
#[doc(alias = "page_counter")]
#[doc(alias = "ucounts")]
#[derive(Debug)]
pub(crate) struct Account {
    lines: [ResourceLine; RESOURCES],
    /// The next ancestor that bounds its descendants, with the charge for this account itself: files and their names
    /// keep accounts of processes that have gone.
    above: Option<Charge>,
    depth: usize,
    /// Limits that are no amounts, by Linux's numbers.
    settings: Mutex<[ResourceLimit; SETTINGS]>,
    /// Files in messages that were not received.
    sent_files: AtomicUsize,
    /// Set if its limits hold for everything that it starts, together.
    bounds: AtomicBool,
    is_first: bool,
}

impl Account {
    /// Creates the account of a first process.
    pub(crate) fn of_the_first() -> Arc<Account> {
        Arc::new(Account {
            lines: Resource::ALL.map(|_| ResourceLine::new(ResourceLimit::both(UNLIMITED))),
            settings: Mutex::new(first_settings()),
            above: None,
            depth: 0,
            sent_files: AtomicUsize::new(0),
            bounds: AtomicBool::new(false),
            is_first: true,
        })
    }

    /// Returns the account of the machine's first process.
    pub(crate) fn first() -> &'static Arc<Account> {
        static FIRST: Once<Arc<Account>> = Once::new();
        FIRST.call_once(Account::of_the_first)
    }

    /// Creates the account of a process that this one starts. `EAGAIN` if too many ancestors bound their descendants;
    /// `ENOMEM`.
    pub(crate) fn of_a_child(self: &Arc<Account>) -> Result<Arc<Account>, Errno> {
        let bounds = self.bounds.load(Ordering::Relaxed);
        let (above, depth) = match self.above() {
            _ if bounds => (Some(self), self.depth + 1),
            above => (above, self.depth),
        };
        if depth > DEEPEST {
            return Err(Errno::EAGAIN);
        }
        let above = above.map(|above| above.charge(Resource::Memory, size_of::<Account>())).transpose()?;
        let lines = Resource::ALL.map(|resource| {
            let mut limit = self.limit(resource);
            if self.is_first {
                // Limits that the first process has set for itself are handed down, up to a share.
                let share = share_of(resource);
                limit = ResourceLimit { soft: limit.soft.min(share), hard: limit.hard.min(share) };
            }
            ResourceLine::new(limit)
        });
        let settings = Mutex::new(*self.settings.lock());
        let bounds = AtomicBool::new(self.is_first);
        let sent_files = AtomicUsize::new(0);
        Ok(Arc::new(Account { lines, settings, above, depth, sent_files, bounds, is_first: false }))
    }

    /// Returns the account of the child of the first process that this one is, or is below.
    fn uppermost(self: &Arc<Account>) -> &Arc<Account> {
        let mut account = self;
        while let Some(above) = account.above().filter(|above| !above.is_first) {
            account = above;
        }
        account
    }

    /// Returns whether a process may have one more of some objects of which there are few in the machine, with `others`
    /// as the accounts of those that there are: it has fewer than are left for others, counted with everything that
    /// shares its limits. So processes that hoard leave some, however many they are. The first process may have all.
    pub(crate) fn may_have_one_more<'a>(
        self: &Arc<Account>,
        most: usize,
        others: impl Iterator<Item = &'a Arc<Account>>,
    ) -> bool {
        let (mut all, mut own) = (0, 0);
        for other in others {
            all += 1;
            own += usize::from(Arc::ptr_eq(self.uppermost(), other.uppermost()));
        }
        all < most && (self.is_first || own < most - all)
    }

    fn line(&self, resource: Resource) -> &ResourceLine {
        &self.lines[resource as usize]
    }

    /// Returns the amount of the process alone.
    pub(crate) fn own(&self, resource: Resource) -> usize {
        self.line(resource).own.load(Ordering::Relaxed)
    }

    /// Returns the amount of the process and those that it bounds.
    pub(crate) fn used(&self, resource: Resource) -> usize {
        self.line(resource).used.load(Ordering::Relaxed)
    }

    /// Returns its limit.
    pub(crate) fn limit(&self, resource: Resource) -> ResourceLimit {
        self.line(resource).limit()
    }

    /// Sets a limit, for the process and everything that it starts from now on. It keeps the amount that it has
    /// already.
    pub(crate) fn set_limit(&self, resource: Resource, limit: ResourceLimit) {
        let line = self.line(resource);
        line.soft.store(limit.soft, Ordering::Relaxed);
        line.hard.store(limit.hard, Ordering::Relaxed);
        self.bounds.store(true, Ordering::Relaxed);
    }

    /// Returns a limit that is no amount.
    pub(crate) fn setting(&self, number: usize) -> ResourceLimit {
        self.settings.lock().get(number).copied().unwrap_or(ResourceLimit::both(UNLIMITED))
    }

    /// Sets a limit that is no amount, for the process, and for each that it starts from now on.
    pub(crate) fn set_setting(&self, number: usize, limit: ResourceLimit) {
        if let Some(setting) = self.settings.lock().get_mut(number) {
            *setting = limit;
        }
    }

    /// Returns one more than the largest descriptor that the process may have.
    pub(crate) fn descriptors(&self) -> usize {
        self.setting(limit::DESCRIPTORS as usize).soft
    }

    /// Returns the greatest size of its address space in bytes.
    pub(crate) fn address_space(&self) -> usize {
        self.setting(limit::ADDRESS_SPACE as usize).soft
    }

    /// Returns whether another account is this one or below it, so that its debts are debts of this one, too. All are
    /// below the first process's.
    pub(crate) fn answers_for(&self, other: &Account) -> bool {
        self.is_first || other.levels().any(|level| core::ptr::eq(level, self))
    }

    /// Returns the next ancestor that bounds its descendants.
    fn above(&self) -> Option<&Arc<Account>> {
        self.above.as_ref().map(Charge::account)
    }

    /// Returns the account and those above it.
    fn levels(&self) -> impl Iterator<Item = &Account> {
        core::iter::successors(Some(self), |account| account.above().map(|above| &**above))
    }

    fn take(&self, resource: Resource, amount: usize) -> Result<(), Errno> {
        self.take_unless_short(resource, amount).map_err(|is_machine_full| {
            if is_machine_full {
                tell_killer(resource);
            }
            resource.refusal()
        })
    }

    /// Takes an amount; an error tells whether the machine has no more.
    fn take_unless_short(&self, resource: Resource, amount: usize) -> Result<(), bool> {
        if faults::fails() {
            return Err(false);
        }
        let mut taken = 0;
        for account in self.levels() {
            let line = account.line(resource);
            if add_within(&line.used, amount, line.soft.load(Ordering::Relaxed)).is_none() {
                self.undo(resource, amount, taken);
                return Err(false);
            }
            taken += 1;
        }
        let total = MACHINE.total(resource);
        let limit = total.limit.load(Ordering::Relaxed);
        let left_to_others = match self.is_first {
            true => 0,
            false => self.used(resource).min(limit / HEADROOM),
        };
        if add_within(&total.used, amount, limit.saturating_sub(left_to_others)).is_none() {
            self.undo(resource, amount, taken);
            return Err(total.used.load(Ordering::Relaxed).saturating_add(amount) > limit);
        }
        self.line(resource).own.fetch_add(amount, Ordering::Relaxed);
        Ok(())
    }

    fn undo(&self, resource: Resource, amount: usize, levels: usize) {
        for account in self.levels().take(levels) {
            account.line(resource).used.fetch_sub(amount, Ordering::Relaxed);
        }
    }

    fn give(&self, resource: Resource, amount: usize) {
        self.line(resource).own.fetch_sub(amount, Ordering::Relaxed);
        self.undo(resource, amount, usize::MAX);
        MACHINE.total(resource).used.fetch_sub(amount, Ordering::Relaxed);
    }

    /// Charges an amount; fails with [`Resource::refusal`] if that would be too much.
    pub(crate) fn charge(self: &Arc<Account>, resource: Resource, amount: usize) -> Result<Charge, Errno> {
        self.take(resource, amount)?;
        Ok(Charge { account: self.clone(), resource, amount })
    }

    /// Creates a charge of nothing, to grow.
    pub(crate) fn nothing(self: &Arc<Account>, resource: Resource) -> Charge {
        Charge { account: self.clone(), resource, amount: 0 }
    }

    /// Admits (ADMISSION) a call that makes the kernel allocate only while a reserve is free, so that the small
    /// allocations inside the kernel do not fail. `ENOMEM` otherwise, also for a process that has used up its limit.
    #[inline]
    pub(crate) fn admit(&self) -> Result<(), Errno> {
        if faults::fails() {
            return Err(Errno::ENOMEM);
        }
        let line = self.line(Resource::Memory);
        if line.used.load(Ordering::Relaxed) < line.soft.load(Ordering::Relaxed)
            && memory::heap::is_available(reserve())
        {
            faults::admitted();
            Ok(())
        } else {
            self.admit_after_a_search()
        }
    }

    #[cold]
    fn admit_after_a_search(&self) -> Result<(), Errno> {
        let line = self.line(Resource::Memory);
        if line.used.load(Ordering::Relaxed) >= line.soft.load(Ordering::Relaxed) {
            return Err(Errno::ENOMEM);
        }
        if has_machine_memory() { Ok(()) } else { Err(Errno::ENOMEM) }
    }
}

/// Files in messages, which are counted until they are received or closed.
impl Account {
    /// Counts files that the process sends; `is_free` if it may exceed limits. As on Linux, fails only if there are too
    /// many already: `ETOOMANYREFS` if the process, or an ancestor that bounds it with all its descendants, has more of
    /// them than it may have descriptors.
    pub(crate) fn send_files(self: &Arc<Account>, count: usize, is_free: bool) -> Result<FilesUnderWay, Errno> {
        let has_too_many = |account: &Account| account.sent_files.load(Ordering::Relaxed) > account.descriptors();
        if !is_free && self.levels().any(has_too_many) {
            return Err(Errno::ETOOMANYREFS);
        }
        for account in self.levels() {
            account.sent_files.fetch_add(count, Ordering::Relaxed);
        }
        Ok(FilesUnderWay { account: self.clone(), count })
    }
}

#[cfg(test)]
impl Account {
    /// Returns the number of files in messages.
    pub(crate) fn sent_files(&self) -> usize {
        self.sent_files.load(Ordering::Relaxed)
    }
}

/// The count of files that a process has sent, until they are received or closed.
pub(crate) struct FilesUnderWay {
    account: Arc<Account>,
    count: usize,
}

impl Drop for FilesUnderWay {
    fn drop(&mut self) {
        for account in self.account.levels() {
            account.sent_files.fetch_sub(self.count, Ordering::Relaxed);
        }
    }
}

/// For memory whose charges have another form; each amount that is taken is given back.
impl Account {
    /// Takes so many bytes of memory, as [`charge`](Self::charge) does.
    pub(crate) fn take_memory(&self, bytes: usize) -> Result<(), Errno> {
        self.take(Resource::Memory, bytes)
    }

    /// Takes so many bytes for what another host has caused: without memory it is dropped, and nobody is ended.
    #[doc(alias = "GFP_ATOMIC")]
    pub(crate) fn take_memory_for_strangers(&self, bytes: usize) -> Result<(), Errno> {
        self.take_unless_short(Resource::Memory, bytes).map_err(|_| Errno::ENOMEM)
    }

    /// Takes so many bytes as [`take_memory`](Self::take_memory) does, if half of each limit stays free. Others may
    /// take some of that at the same moment: the limits hold in any case.
    pub(crate) fn take_spare_memory(&self, bytes: usize) -> Result<(), Errno> {
        let is_spare = |used: &AtomicUsize, limit: &AtomicUsize| {
            used.load(Ordering::Relaxed).saturating_add(bytes) <= limit.load(Ordering::Relaxed) / 2
        };
        let machine = MACHINE.total(Resource::Memory);
        let mut lines = self.levels().map(|account| account.line(Resource::Memory));
        if !is_spare(&machine.used, &machine.limit) || !lines.all(|line| is_spare(&line.used, &line.soft)) {
            return Err(Errno::ENOMEM);
        }
        self.take_memory_for_strangers(bytes)
    }

    /// Gives so many bytes of memory back.
    pub(crate) fn give_memory(&self, bytes: usize) {
        self.give(Resource::Memory, bytes);
    }
}

/// Pages of files are charged to the process whose write makes them, and stay charged to it when it has ended.
impl filesystem::Owner for Account {
    fn charge(&self, bytes: u64) -> bool {
        self.take(Resource::Files, bytes as usize).is_ok()
    }

    fn refund(&self, bytes: u64) {
        self.give(Resource::Files, bytes as usize);
    }
}

/// Returns whether there is memory for something that a program has caused, if not requested. Memory that harts have
/// put aside is collected before the answer is no.
pub(crate) fn has_machine_memory() -> bool {
    if faults::fails() {
        return false;
    }
    let is_there = has_reserve();
    if !is_there {
        tell_killer(Resource::Memory);
    }
    is_there
}

/// Returns whether there is memory for something that another host has caused, as [`has_machine_memory`] does, but
/// nobody is ended for it.
pub(crate) fn has_memory_for_strangers() -> bool {
    !faults::fails() && has_reserve()
}

fn has_reserve() -> bool {
    let is_there = memory::heap::is_available(reserve()) || memory::heap::collect(reserve());
    if is_there {
        faults::admitted();
    }
    is_there
}

/// Returns whether there is memory for something that no process has requested, and that can be done without. Nothing
/// is collected for it, and nobody is ended.
pub(crate) fn has_spare_memory() -> bool {
    !faults::fails() && memory::heap::is_available(2 * reserve())
}

/// An amount of a resource that is charged to an account; given back on drop.
#[doc(alias = "try_charge_memcg")]
#[derive(Debug)]
#[must_use]
pub(crate) struct Charge {
    account: Arc<Account>,
    resource: Resource,
    amount: usize,
}

impl Charge {
    /// Returns the amount.
    pub(crate) fn amount(&self) -> usize {
        self.amount
    }

    /// Returns the account.
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Changes the amount: to a smaller one always, to a larger one if the owner may have it.
    pub(crate) fn resize(&mut self, amount: usize) -> Result<(), Errno> {
        match amount.checked_sub(self.amount) {
            Some(0) => {}
            Some(more) => self.account.take(self.resource, more)?,
            None => self.account.give(self.resource, self.amount - amount),
        }
        self.amount = amount;
        Ok(())
    }

    /// Adds another charge for the same resource of the same account.
    pub(crate) fn merge(&mut self, mut other: Charge) {
        debug_assert!(Arc::ptr_eq(&self.account, &other.account) && self.resource == other.resource);
        self.amount += core::mem::take(&mut other.amount);
    }

    /// Shrinks the charge to this amount, if it is larger.
    pub(crate) fn shrink_to(&mut self, amount: usize) {
        if amount < self.amount {
            self.account.give(self.resource, self.amount - amount);
            self.amount = amount;
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.account.give(self.resource, self.amount);
        }
    }
}

/// Charges for things that come and go all the time, of which each has `bytes` of kernel memory: made for some of them
/// together, so that most of them cost a comparison. Its owner locks it.
#[derive(Debug)]
pub(crate) struct Batch {
    count: Charge,
    memory: Charge,
    bytes: usize,
}

/// Number of things that are charged together.
const BATCH: usize = 32;
/// Number of things that may be charged without being there before they are given back.
const SLACK: usize = 4 * BATCH;

impl Batch {
    /// Creates a batch of nothing.
    pub(crate) fn new(account: &Arc<Account>, resource: Resource, bytes: usize) -> Batch {
        Batch { count: account.nothing(resource), memory: account.nothing(Resource::Memory), bytes }
    }

    /// Ensures that this many are charged.
    #[inline(always)]
    pub(crate) fn require(&mut self, count: usize) -> Result<(), Errno> {
        if count <= self.count.amount { Ok(()) } else { self.grow(count) }
    }

    #[cold]
    fn grow(&mut self, count: usize) -> Result<(), Errno> {
        let before = self.count.amount;
        // One at a time when a whole batch is too much: a limit is reached exactly, and not a batch less.
        for wanted in [count.next_multiple_of(BATCH), count] {
            let grown = self.count.resize(wanted).and_then(|()| self.memory.resize(wanted * self.bytes));
            match grown {
                Ok(()) => return Ok(()),
                Err(error) => {
                    self.count.shrink_to(before);
                    if wanted == count {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Gives back the part that is not needed if there are only this many.
    #[inline(always)]
    pub(crate) fn settle(&mut self, count: usize) {
        if self.count.amount > count + SLACK {
            self.shrink(count);
        }
    }

    #[cold]
    fn shrink(&mut self, count: usize) {
        let kept = count.next_multiple_of(BATCH);
        self.count.shrink_to(kept);
        self.memory.shrink_to(kept * self.bytes);
    }
}

// ---- the OOM killer's view ----

/// Number of free bytes from which on no process has to end.
pub(crate) const SPARE: usize = 64 * PAGE_SIZE;

/// Summons the OOM killer.
static KILLER: Once<fn()> = Once::new();

/// Registers the function that summons the OOM killer. Called once.
pub(crate) fn call_when_short(summon: fn()) {
    KILLER.call_once(|| summon);
}

/// Makes the OOM killer look, if this resource is memory.
fn tell_killer(resource: Resource) {
    if matches!(resource, Resource::Memory | Resource::Files)
        && let Some(summon) = KILLER.get()
    {
        summon();
    }
}

/// Returns whether the machine has nothing left.
pub(crate) fn is_short() -> bool {
    let is_full = |resource| {
        let total = MACHINE.total(resource);
        total.used.load(Ordering::Relaxed) + SPARE > total.limit.load(Ordering::Relaxed)
    };
    !memory::heap::is_available(reserve()) || is_full(Resource::Memory) || is_full(Resource::Files)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs a test with a machine of so many bytes. The machine's account is one for all tests: the amounts of others
    /// are put aside.
    fn with_machine<R>(bytes: usize, test: impl FnOnce() -> R) -> R {
        let _guard = crate::testing::alone();
        // An account that is full may summon a coroutine of the kernel that runs there.
        let _hart = crate::testing::simulation().attach(0);
        let totals = [&MACHINE.memory, &MACHINE.calls, &MACHINE.processes];
        let before = totals.map(|total| (total.used.swap(0, Ordering::Relaxed), total.limit.load(Ordering::Relaxed)));
        limit_machine(bytes, 10_000, 100);
        let result = test();
        for (resource, (total, (used, limit))) in ["memory", "calls", "processes"].iter().zip(totals.iter().zip(before))
        {
            assert_eq!(total.used.swap(used, Ordering::Relaxed), 0, "not given back: {resource}");
            total.limit.store(limit, Ordering::Relaxed);
        }
        result
    }

    #[test]
    fn a_process_that_has_its_share_is_refused_and_others_go_on() {
        with_machine(7680, || {
            let first = Account::of_the_first();
            let hoarders: Vec<_> = (0..4).map(|_| first.of_a_child().unwrap()).collect();
            let mut held = Vec::new();
            for hoarder in &hoarders {
                assert_eq!(hoarder.limit(Resource::Memory), ResourceLimit::both(1280));
                while let Ok(charge) = hoarder.charge(Resource::Memory, 10) {
                    held.push(charge);
                }
                assert_eq!(hoarder.used(Resource::Memory), 1280);
                assert_eq!(hoarder.charge(Resource::Memory, 1).err(), Some(Errno::ENOMEM));
            }
            let innocent = first.of_a_child().unwrap();
            drop(innocent.charge(Resource::Memory, 100).unwrap());
            drop(first.charge(Resource::Memory, 1000).unwrap());
        });
    }

    #[test]
    fn however_many_hoard_something_is_left_for_the_small() {
        with_machine(16_000, || {
            let first = Account::of_the_first();
            let mut held = Vec::new();
            for _ in 0..50 {
                let hoarder = first.of_a_child().unwrap();
                while let Ok(charge) = hoarder.charge(Resource::Memory, 10) {
                    held.push(charge);
                }
            }
            let left = 16_000 - MACHINE.memory.used.load(Ordering::Relaxed);
            // The last ones have nearly nothing themselves.
            assert!((10..1000).contains(&left), "{left}");
            drop(first.charge(Resource::Memory, left).unwrap());
            assert_eq!(first.charge(Resource::Memory, left + 1).err(), Some(Errno::ENOMEM));
        });
    }

    #[test]
    fn descendants_of_a_child_of_the_first_share_its_limit() {
        with_machine(7680 * 1024, || {
            let child = Account::of_the_first().of_a_child().unwrap();
            let mut held = vec![child.charge(Resource::Memory, 1000 * 1024).unwrap()];
            let mut descendant = child.clone();
            // Accounts are charged themselves, as long as one of their charges is left.
            let rest = 10 * 1024 - size_of::<Account>();
            while let Ok(next) = descendant.of_a_child() {
                descendant = next;
                held.push(descendant.charge(Resource::Memory, rest).unwrap());
            }
            assert_eq!(child.used(Resource::Memory), 1280 * 1024);
            assert_eq!(child.own(Resource::Memory), 1000 * 1024 + 28 * size_of::<Account>());
            drop(held);
            assert_eq!(child.used(Resource::Memory), size_of::<Account>());
            // Accounts of processes that have gone do not pile up.
            assert_eq!(descendant.depth, 1);
        });
    }

    #[test]
    fn a_limit_that_is_set_holds_for_those_started_later() {
        with_machine(7_680_000, || {
            let mut account = Account::of_the_first().of_a_child().unwrap();
            account.set_limit(Resource::Memory, ResourceLimit { soft: 100_000, hard: 200_000 });
            let one = account.of_a_child().unwrap();
            let two = account.of_a_child().unwrap();
            let first = one.charge(Resource::Memory, 60_000).unwrap();
            assert_eq!(two.charge(Resource::Memory, 60_000).err(), Some(Errno::ENOMEM));
            drop(first);
            drop(two.charge(Resource::Memory, 60_000).unwrap());
            assert_eq!(two.limit(Resource::Memory), ResourceLimit { soft: 100_000, hard: 200_000 });
            for _ in 0..DEEPEST {
                account.set_limit(Resource::Calls, ResourceLimit::both(7));
                account = account.of_a_child().unwrap();
            }
            account.set_limit(Resource::Calls, ResourceLimit::both(7));
            assert!(account.of_a_child().is_err_and(|error| error == Errno::EAGAIN));
        });
    }

    #[test]
    fn a_batch_keeps_to_the_limit_and_gives_back() {
        with_machine(1 << 30, || {
            let account = Account::of_the_first().of_a_child().unwrap();
            account.set_limit(Resource::Calls, ResourceLimit::both(70));
            let mut batch = Batch::new(&account, Resource::Calls, 100);
            for count in 1..=70 {
                batch.require(count).unwrap();
                assert!((count..count + BATCH).contains(&account.used(Resource::Calls)));
            }
            assert_eq!(batch.require(71), Err(Errno::EBUSY));
            assert_eq!((account.used(Resource::Calls), account.used(Resource::Memory)), (70, 7000));
            batch.settle(69);
            assert_eq!(account.used(Resource::Calls), 70);
            account.set_limit(Resource::Calls, ResourceLimit::both(UNLIMITED));
            batch.require(10 * SLACK).unwrap();
            batch.settle(3);
            assert_eq!((account.used(Resource::Calls), account.used(Resource::Memory)), (BATCH, 100 * BATCH));
            // Without memory for a call there is no call either.
            account.set_limit(Resource::Memory, ResourceLimit::both(100 * BATCH + 50));
            assert_eq!(batch.require(BATCH + 1), Err(Errno::ENOMEM));
            assert_eq!(account.used(Resource::Calls), BATCH);
        });
    }

    #[derive(Clone, Debug)]
    enum Step {
        Child(usize),
        Charge(usize, usize),
        Resize(usize, usize),
        Drop(usize),
        Limit(usize, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            1 => any::<usize>().prop_map(Step::Child),
            4 => (any::<usize>(), 0usize..30_000).prop_map(|(who, amount)| Step::Charge(who, amount)),
            3 => (any::<usize>(), 0usize..30_000).prop_map(|(which, amount)| Step::Resize(which, amount)),
            2 => any::<usize>().prop_map(Step::Drop),
            1 => (any::<usize>(), 0usize..200_000).prop_map(|(who, limit)| Step::Limit(who, limit)),
        ]
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// After any steps, each account's use is the sum of the charges in it and below it, nothing has grown beyond a
        /// limit, and in the end everything is given back.
        #[test]
        fn use_is_the_sum_of_the_charges(steps in prop::collection::vec(step(), 0..200)) {
            with_machine(400_000, || {
                let mut accounts = vec![Account::of_the_first()];
                let mut charges: Vec<Charge> = Vec::new();
                for step in steps {
                    match step {
                        Step::Child(of) => {
                            if let Ok(child) = accounts[of % accounts.len()].of_a_child() {
                                accounts.push(child);
                            }
                        }
                        Step::Charge(who, amount) => {
                            charges.extend(accounts[who % accounts.len()].charge(Resource::Memory, amount).ok());
                        }
                        Step::Resize(which, amount) if !charges.is_empty() => {
                            let which = which % charges.len();
                            let before = charges[which].amount();
                            let resized = charges[which].resize(amount).is_ok();
                            prop_assert!(resized || amount > before);
                            prop_assert_eq!(charges[which].amount(), if resized { amount } else { before });
                        }
                        Step::Drop(which) if !charges.is_empty() => drop(charges.swap_remove(which % charges.len())),
                        Step::Limit(who, limit) => {
                            accounts[who % accounts.len()].set_limit(Resource::Memory, ResourceLimit::both(limit));
                        }
                        Step::Resize(..) | Step::Drop(_) => {}
                    }
                    let sum = |is_in: &dyn Fn(&Account) -> bool| {
                        let of_accounts = accounts.iter().filter_map(|account| account.above.as_ref());
                        let all = charges.iter().chain(of_accounts);
                        all.filter(|charge| is_in(&charge.account)).map(Charge::amount).sum::<usize>()
                    };
                    for account in &accounts {
                        let is_same = |other: &Account| core::ptr::eq(other, &raw const **account);
                        let own = sum(&|other| is_same(other));
                        prop_assert_eq!(account.own(Resource::Memory), own);
                        prop_assert_eq!(account.used(Resource::Memory), sum(&|other| other.levels().any(is_same)));
                    }
                    let total = MACHINE.memory.used.load(Ordering::Relaxed);
                    prop_assert_eq!(total, sum(&|_| true));
                    prop_assert!(total <= 400_000);
                }
                Ok(())
            })?;
        }
    }
}
