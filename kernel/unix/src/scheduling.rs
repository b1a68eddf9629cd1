//! TimeQuotas of scheduling: ceilings, budgets, the starvation bound, and the mode that executors follow.
//!
//! The order of priorities is the scheduler's. The priority that a process publishes in its process page is only a
//! claim, and this module limits the effective priority of a claim:
//!
//! * **Ceiling.** No claim of a process counts for more. Children inherit it. And no claim counts for as much as the
//!   most important priority of the kernel's executor: a claim counts for the priority behind its own ([`MOST_CLAIM`]).
//! * **Budget.** So much processor time in each period, over all harts and coroutines of the process. When it is used
//!   up, the process is [`EXHAUSTED`], behind all processes that have budget left, until the next period. Time that it
//!   takes at that priority was wanted by no other process, and is free; all other time is charged, and an overrun, at
//!   most a slice on each hart, is paid back in the periods to come. Every process has the default budget. A budget
//!   that was set covers the children that are started afterwards too, so that it cannot be escaped by starting more of
//!   them. The limit that a parent or a privileged process has given is one, and the limit that a process has chosen
//!   for itself is another: both count, so that the second cannot replace the first. Changing a limit forgets nothing
//!   that was used.
//! * **Starvation bound.** A process in which something has been ready for that long runs, however unimportant it is:
//!   the *watchdog*, a kernel coroutine, looks twice in each bound at the ready priorities, and lets one worker, thread
//!   or call of each process that has not had a turn from one look to the next be the most important of all until it
//!   has had a slice: one at a time, and each in its turn. So N processes that starve run within N slices and the
//!   bound, however many threads they have, and whatever others claim: the watchdog and preferred members have a
//!   priority that no claim has, and stand in line there. (Linking them in front of those with the best claim would do
//!   for one of them, but the last one that was linked would be the first to run, and processes that starve again and
//!   again would hold back one that has waited longer.) Nothing of an exhausted process is preferred: its turn comes
//!   when its budget is refilled. The watchdog looks at all processes only if something was ready at one priority at
//!   both looks, which is rare on a machine that keeps up; it looks in short steps, and charges its work to the process
//!   that it looks at.
//!
//! # EVERY-TICK
//!
//! Every tick that a hart spends for a process is charged to that process, and none is spent at a priority above
//! [`EXHAUSTED`] once the budget is used up, but for the rest of the poll in which that is noticed. Two things ensure
//! this. A coroutine of the kernel either [works for an owner](executor::spawn_for), and then each of its polls is
//! charged as a whole, or is one of the kernel's own few; there is no third way to start one. And a poll for a process
//! without budget lowers its coroutine instead of going on. So exhausting a budget costs the same however many threads
//! and calls the process has: each is lowered at its next poll. The watchdog raises them again, in steps that are
//! charged as well.
//!
//! The network's coroutine is one of the kernel's own, and charges its work for a frame or a connection to the process
//! that waits for it ([`network::stack`](crate::network::stack)). No process is charged for interrupts that find no
//! process running, the choice of the next coroutine, looks that find a frame's reader, frames without a reader, and
//! waking the rest of thousands that wait for one thing ([`remainders`]).
//!
//! **Mode** is not protection but precision: a *strict* executor compares itself with the global bitmap before each of
//! its polls. The kernel's part is to keep that bitmap up to date at each return to user mode, from when the first
//! process asks for it ([`stretch::returns_are_watched`]).
//!
//! The calls that set any of this are decoded here too. A process may restrict itself and those below it; more needs
//! authority ([`crate::process::authority`]).
//!
//! Rejected for budgets: a priority that decays with use (Unix's, and fair schedulers'). It makes all priorities soft,
//! and the most important coroutine of a busy server would fall behind a batch job.

pub(crate) mod executor;
pub(crate) mod remainders;
pub(crate) mod steps;
pub(crate) mod stretch;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use core::task::{Poll, Waker};

use abi_queue::{Mode, Priority, SystemMode};
use abi_unix::types::{Scheduling, scheduling, system_scheduling};
use abi_unix::{Act, Counter, Errno};
use coroutine::State;
use hal_api::Machine as _;
use platform::{Machine, println};
use spin::Mutex;

use crate::asynchronous::input;
use crate::network::stack;
use crate::observing::counters;
use crate::process::user::UserBuffer;
use crate::process::{self, Look, Member, Process, authority, shared};
use crate::scheduling::executor::{Cid, EXHAUSTED, Owner};
use crate::time;

/// The most that a claim counts for. [`Priority::HIGHEST`] is for the kernel's own coroutines, for processes that end,
/// and for those that starve: they stand in front of all claims, and in one line among themselves. If they shared a
/// priority with claims, a process with many workers that never rest would stand in front of them, a slice for each
/// worker.
pub(crate) const MOST_CLAIM: Priority = Priority::saturating(1);
/// The least that a claim counts for while there is budget left.
pub(crate) const LEAST_CLAIM: Priority = Priority::saturating(abi_queue::PRIORITIES as u64 - 2);

/// Period of the default budget.
const DEFAULT_PERIOD_NS: u64 = 100_000_000;
/// Default budget of a process, in hundredths of the time of all harts.
const DEFAULT_BUDGET_PERCENT: u64 = 95;
/// Greatest depth of budgets that cover children within each other.
const DEEPEST: u32 = 8;
/// Starvation bound, unless the boot command line sets another.
const DEFAULT_BOUND_NS: u64 = 1_000_000_000;
/// Number of processes after which the watchdog looks for interrupts.
const PROCESSES_AT_A_TIME: usize = 64;
/// Number of workers, threads and calls of one process after which it does so, too.
const MEMBERS_AT_A_TIME: usize = 128;
/// Number of these steps after which it lets others run. Not after each: its next turn may be a slice of each preferred
/// member away.
const STEPS_AT_A_TIME: usize = 32;
/// Time that the watchdog rests for each process that it has found exhausted.
const LOOK_AT_ONE_NS: u64 = 10_000;

// ---- budgets ----

/// A limit of processor time in ticks, and the time used of it.
#[derive(Clone, Copy, Debug)]
struct TimeQuota {
    /// Ticks in each period; all ones for no limit.
    ticks: u64,
    period: u64,
    used: u64,
    period_start: u64,
}

impl TimeQuota {
    fn new(ticks: u64, period: u64, now: u64) -> TimeQuota {
        TimeQuota { ticks, period, used: 0, period_start: now }
    }

    /// Begins the periods that have begun by now. Each pays back the overrun of those before it.
    fn advance(&mut self, now: u64) {
        let periods = now.saturating_sub(self.period_start) / self.period.max(1);
        if periods > 0 {
            self.used = self.used.saturating_sub(self.ticks.saturating_mul(periods));
            self.period_start += periods * self.period;
        }
    }

    fn is_used_up(&self) -> bool {
        self.used >= self.ticks
    }

    /// Charges time to the limit. Time that was taken while all others went before is free if nothing is left.
    fn charge(&mut self, ticks: u64, now: u64, behind_all: bool) {
        self.advance(now);
        if !behind_all || !self.is_used_up() {
            self.used = self.used.saturating_add(ticks);
        }
    }

    /// Returns the beginning of the next period in which the limit is not used up; `now` if it is not.
    fn refilled_at(&mut self, now: u64) -> u64 {
        self.advance(now);
        if !self.is_used_up() {
            return now;
        }
        let periods = self.used / self.ticks.max(1);
        self.period_start.saturating_add(periods.max(1).saturating_mul(self.period))
    }

    /// Returns whether this much time in each period is neither a greater share nor more at once.
    fn allows(&self, ticks: u64, period: u64) -> bool {
        // Shares are compared as products, which 128 bits hold.
        ticks <= self.ticks
            && u128::from(ticks) * u128::from(self.period) <= u128::from(self.ticks) * u128::from(period)
    }

    /// Becomes another limit with the same part used, at the same place of the period: changing a limit refills
    /// nothing.
    fn change(&mut self, ticks: u64, period: u64, now: u64) {
        self.advance(now);
        let scaled = |value: u64, from: u64, to: u64| {
            let scaled = (u128::from(value) * u128::from(to)).div_ceil(u128::from(from.max(1)));
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        let elapsed = scaled(now.saturating_sub(self.period_start), self.period, period);
        self.used = match (self.ticks, ticks) {
            // The part used of an unlimited amount is nothing.
            (u64::MAX, _) | (_, u64::MAX) => 0,
            (before, ticks) => scaled(self.used, before, ticks),
        };
        (self.ticks, self.period, self.period_start) = (ticks, period, now.saturating_sub(elapsed));
    }
}

/// The limits of one process.
#[derive(Clone, Copy, Debug)]
struct TimeQuotas {
    /// The limit that its parent or a privileged process has given, or the default.
    given: TimeQuota,
    /// The limit that the process has chosen itself.
    chosen: Option<TimeQuota>,
}

impl TimeQuotas {
    fn all(&mut self) -> impl Iterator<Item = &mut TimeQuota> {
        [&mut self.given].into_iter().chain(self.chosen.as_mut())
    }

    fn is_used_up(&self) -> bool {
        self.given.is_used_up() || self.chosen.is_some_and(|chosen| chosen.is_used_up())
    }

    /// Returns the limit that restricts more.
    fn effective(&self) -> TimeQuota {
        match self.chosen {
            Some(chosen) if chosen.is_used_up() || self.given.allows(chosen.ticks, chosen.period) => chosen,
            _ => self.given,
        }
    }
}

/// A process's budget.
#[doc(alias = "cfs_bandwidth")]
#[doc(alias = "sched_dl_entity")]
#[derive(Debug)]
pub(crate) struct Budget {
    limits: Mutex<TimeQuotas>,
    /// Set if a limit was used up at the last look; written with the limits locked.
    used_up: AtomicBool,
    /// Set if the budget was set, so that it covers children.
    covers_children: AtomicBool,
    /// The budget of an ancestor that covers this process too.
    above: Option<Arc<Budget>>,
    depth: u32,
}

impl Budget {
    fn new(given: TimeQuota, above: Option<Arc<Budget>>) -> Budget {
        Budget {
            limits: Mutex::new(TimeQuotas { given, chosen: None }),
            used_up: AtomicBool::new(false),
            covers_children: AtomicBool::new(false),
            depth: above.as_ref().map_or(0, |above| above.depth + 1),
            above,
        }
    }

    /// Creates the default budget of a process whose parent has this one.
    pub(crate) fn below(parent: Option<&Arc<Budget>>) -> Arc<Budget> {
        let above = parent.and_then(|parent| {
            if parent.covers_children.load(Ordering::Relaxed) { Some(parent.clone()) } else { parent.above.clone() }
        });
        let period = time::ticks_at_ns(DEFAULT_PERIOD_NS);
        let percent = DEFAULT_PERCENT.load(Ordering::Relaxed);
        let ticks = if percent >= 100 { u64::MAX } else { period * crate::machine::harts() as u64 * percent / 100 };
        Arc::new(Budget::new(TimeQuota::new(ticks, period, Machine::now()), above))
    }

    /// Charges time to this budget and those above; returns whether one of them is used up.
    fn charge(&self, ticks: u64, now: u64, behind_all: bool) -> bool {
        let above = self.above.as_ref().is_some_and(|above| above.charge(ticks, now, behind_all));
        let mut limits = self.limits.lock();
        limits.given.charge(ticks, now, behind_all);
        if let Some(chosen) = &mut limits.chosen {
            chosen.charge(ticks, now, behind_all);
        }
        self.note(&limits) | above
    }

    /// Records whether one of the limits is used up.
    fn note(&self, limits: &TimeQuotas) -> bool {
        let used_up = limits.is_used_up();
        self.used_up.store(used_up, Ordering::Relaxed);
        used_up
    }

    /// Returns the beginning of the next period in which none of the budgets is used up; `now` if none is.
    fn refilled_at(&self, now: u64) -> u64 {
        let above = self.above.as_ref().map_or(now, |above| above.refilled_at(now));
        let mut limits = self.limits.lock();
        let at = limits.all().fold(above, |at, limit| at.max(limit.refilled_at(now)));
        self.note(&limits);
        at
    }

    /// Returns whether a budget above was used up at its last look. Mostly there is none.
    #[inline(always)]
    fn was_used_up_above(&self) -> bool {
        self.above.as_ref().is_some_and(|above| above.was_used_up())
    }

    fn was_used_up(&self) -> bool {
        self.used_up.load(Ordering::Relaxed) || self.was_used_up_above()
    }

    /// Changes the given or the chosen limit of the process. `EPERM` for more than was given, unless the caller is
    /// privileged.
    fn change(&self, ticks: u64, period: u64, by: By, now: u64) -> Result<(), Errno> {
        let mut limits = self.limits.lock();
        if by != By::Privileged && (ticks == u64::MAX || !limits.given.allows(ticks, period)) {
            return Err(Errno::EPERM);
        }
        match by {
            By::Itself => {
                limits.chosen.get_or_insert(TimeQuota::new(u64::MAX, period, now)).change(ticks, period, now);
            }
            By::Parent => limits.given.change(ticks, period, now),
            By::Privileged => {
                limits.given.change(ticks, period, now);
                limits.chosen = None;
            }
        }
        self.note(&limits);
        Ok(())
    }
}

/// The process that sets a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Itself,
    Parent,
    Privileged,
}

/// Scheduling state and settings of one process.
#[doc(alias = "sched_entity")]
#[derive(Debug)]
pub(crate) struct Standing {
    ceiling: AtomicU8,
    mode: AtomicU8,
    budget: Arc<Budget>,
    /// Set while its claims count for nothing, until its budget is refilled.
    exhausted: AtomicBool,
    /// Set while it is on [`PENALTY_BENCH`]; written with that locked.
    benched: AtomicBool,
    /// Set while frames for it stand behind those of others because its budget is used up.
    frames_behind: AtomicBool,
    /// Its worker, thread or call that runs before its turn, because of the starvation bound.
    preferred: AtomicU64,
    /// Member with which the watchdog's next look at it begins.
    next_look: AtomicU64,
    times_exhausted: AtomicU32,
    boosts: AtomicU32,
    /// Ticks that were charged to it.
    cpu: AtomicU64,
}

impl Standing {
    fn new(ceiling: Priority, mode: Mode, budget: Arc<Budget>) -> Standing {
        Standing {
            ceiling: AtomicU8::new(ceiling.number()),
            mode: AtomicU8::new(mode as u8),
            budget,
            exhausted: AtomicBool::new(false),
            benched: AtomicBool::new(false),
            frames_behind: AtomicBool::new(false),
            preferred: AtomicU64::new(0),
            next_look: AtomicU64::new(0),
            times_exhausted: AtomicU32::new(0),
            boosts: AtomicU32::new(0),
            cpu: AtomicU64::new(0),
        }
    }

    /// Records that frames for the process are put behind others until its budget is refilled. The caller must look
    /// afterwards whether it has been.
    pub(crate) fn frames_stand_behind(&self) {
        self.frames_behind.store(true, Ordering::Relaxed);
        // Either the coroutine that refills the budget sees this flag, or the caller sees the refill.
        fence(Ordering::SeqCst);
    }

    /// Creates the standing of the first process.
    pub(crate) fn of_the_first() -> Standing {
        Standing::new(Priority::HIGHEST, Mode::Relaxed, Budget::below(None))
    }

    /// Creates the standing of a child: it inherits ceiling and mode, and is covered by budgets that were set.
    pub(crate) fn inherited(&self) -> Standing {
        Standing::new(self.ceiling(), self.mode(), Budget::below(Some(&self.budget)))
    }

    /// Returns the most that a claim counts for.
    pub(crate) fn ceiling(&self) -> Priority {
        Priority::saturating(self.ceiling.load(Ordering::Relaxed).into())
    }

    /// Returns the mode that the process has set for its executor.
    pub(crate) fn mode(&self) -> Mode {
        Mode::from_number(self.mode.load(Ordering::Relaxed).into()).unwrap_or_default()
    }

    /// TimeQuotas a priority for use within the process. Among its own calls and coroutines all priorities within its
    /// ceiling differ; [`worth`](Self::worth) tells their effective priority beside other processes.
    pub(crate) fn within_ceiling(&self, priority: Priority) -> Priority {
        priority.limited_to(self.ceiling())
    }

    /// Returns the effective priority of a claim while there is budget left.
    fn claim(&self, claim: Priority) -> Priority {
        worth_of(self.within_ceiling(claim))
    }

    /// TimeQuotas a priority that the process may have to the lowest one while the budget is used up.
    pub(crate) fn limit(&self, priority: Priority) -> Priority {
        if self.exhausted.load(Ordering::Relaxed) { EXHAUSTED } else { priority }
    }

    /// Returns the present effective priority of a claim.
    pub(crate) fn worth(&self, claim: Priority) -> Priority {
        self.limit(self.claim(claim))
    }

    /// Lifts exhaustion from a process that has ended: the rest of its work is charged, but goes on immediately, since
    /// others wait for the things that it holds.
    pub(crate) fn has_ended(&self) {
        self.exhausted.store(false, Ordering::Relaxed);
        if self.benched.load(Ordering::Relaxed) {
            wake_watchdog();
        }
    }

    /// Counts a member that was preferred because of the starvation bound.
    pub(crate) fn boosted(&self) {
        self.boosts.fetch_add(1, Ordering::Relaxed);
        counters::count(Counter::StarvationBoosts);
    }

    /// Returns the ticks that were charged to it.
    pub(crate) fn charged(&self) -> u64 {
        self.cpu.load(Ordering::Relaxed)
    }
}

impl Owner for Arc<Process> {
    fn number(&self) -> u32 {
        self.id
    }

    #[inline(always)]
    fn has_no_claim(&self) -> bool {
        has_no_claim(self)
    }

    fn ends(&self, start: u64) {
        let now = Machine::now();
        charge(self, now.saturating_sub(start), now);
    }
}

/// Returns whether the budget of a process, or one that covers it, is used up: then nothing of it is polled at another
/// priority than [`EXHAUSTED`]. A process that has ended has no claims and goes on, so that the things that it holds
/// are free soon.
#[inline(always)]
pub(crate) fn has_no_claim(process: &Arc<Process>) -> bool {
    let standing = &process.standing;
    standing.exhausted.load(Ordering::Relaxed) || standing.budget.was_used_up_above() && is_exhausted_above(process)
}

/// Returns whether a budget above is still used up, by another process for instance; if so, exhausts this process too.
#[cold]
fn is_exhausted_above(process: &Arc<Process>) -> bool {
    let now = Machine::now();
    if process.standing.budget.refilled_at(now) > now {
        exhaust(process);
    }
    process.standing.exhausted.load(Ordering::Relaxed)
}

/// Does work for a process in a coroutine of the kernel's own, and charges the process for it.
pub(crate) fn charging<R>(process: &Arc<Process>, work: impl FnOnce() -> R) -> R {
    let start = Machine::now();
    let result = work();
    process.ends(start);
    result
}

/// Charges a process for time that was spent for it.
///
/// No process runs for much longer than a slice without being charged: the timer interrupts. If very much more time has
/// passed, the whole machine stood still meanwhile (under a hypervisor, or an emulator without a processor). The
/// process that happened to run then pays for one period at most, and is not behind all others for many.
pub(crate) fn charge(process: &Arc<Process>, ticks: u64, now: u64) {
    charge_for(process, ticks, now, executor::current_priority() == EXHAUSTED);
}

/// Does as [`charge`], for a caller that can tell whether all others went before: a coroutine that works for a process
/// may be more important than it.
pub(crate) fn charge_for(process: &Arc<Process>, ticks: u64, now: u64, behind_all: bool) {
    let standing = &process.standing;
    // Relaxed: a sum that is only read.
    standing.cpu.fetch_add(ticks, Ordering::Relaxed);
    let is_exhausted = standing.exhausted.load(Ordering::Relaxed);
    let behind_all = is_exhausted && behind_all;
    let ticks = ticks.min(time::ticks_at_ns(DEFAULT_PERIOD_NS));
    if standing.budget.charge(ticks, now, behind_all) && !is_exhausted {
        exhaust(process);
    }
}

/// Processes whose budget is used up.
static PENALTY_BENCH: Mutex<Vec<Arc<Process>>> = Mutex::new(Vec::new());

/// Exhausts a process: its claims count for nothing. Its ready coroutines are lowered when they are polled.
#[cold]
fn exhaust(process: &Arc<Process>) {
    let standing = &process.standing;
    if process.has_ended() {
        return;
    }
    {
        let mut bench = PENALTY_BENCH.lock();
        if !standing.benched.load(Ordering::Relaxed) {
            // Without room on the bench its budget's refill would be missed; it will be charged again.
            if bench.try_reserve(1).is_err() {
                return;
            }
            bench.push(process.clone());
            standing.benched.store(true, Ordering::Relaxed);
        }
        if standing.exhausted.swap(true, Ordering::Relaxed) {
            return;
        }
    }
    standing.times_exhausted.fetch_add(1, Ordering::Relaxed);
    counters::count(Counter::BudgetsExhausted);
    wake_watchdog();
}

/// Takes a process that has ended off the bench.
pub(crate) fn forget(process: &Arc<Process>) {
    if process.standing.benched.load(Ordering::Relaxed) {
        let found = {
            let mut bench = PENALTY_BENCH.lock();
            let place = bench.iter().position(|other| Arc::ptr_eq(other, process));
            place.map(|place| bench.swap_remove(place))
        };
        drop(found);
    }
}

/// Takes the processes off the bench whose budgets have been refilled; returns the time of the next refill, and the
/// number of processes left.
///
/// # Cancellation
/// Dropping it leaves processes on the bench. The watchdog never does.
#[doc(alias = "unthrottle_cfs_rq")]
async fn forgive() -> (u64, usize) {
    let mut pace = Pace::default();
    let mut next = u64::MAX;
    let mut place = 0;
    loop {
        let now = Machine::now();
        let (forgiven, is_done) = {
            let mut bench = PENALTY_BENCH.lock();
            let end = bench.len().min(place + PROCESSES_AT_A_TIME);
            let mut forgiven = None;
            while place < end && forgiven.is_none() {
                let process = &bench[place];
                let at = process.standing.budget.refilled_at(now);
                if at <= now || process.has_ended() {
                    process.standing.benched.store(false, Ordering::Relaxed);
                    process.standing.exhausted.store(false, Ordering::Relaxed);
                    forgiven = Some(bench.swap_remove(place));
                } else {
                    next = next.min(at);
                    place += 1;
                }
            }
            (forgiven, place >= bench.len())
        };
        if let Some(process) = forgiven {
            fence(Ordering::SeqCst);
            if process.standing.frames_behind.swap(false, Ordering::Relaxed) {
                charging(&process, || stack::restore_arrivals(&process));
            }
            order_anew(&process, &mut pace).await;
        }
        if is_done {
            return (next, place);
        }
        pace.step().await;
    }
}

/// Gives each worker, thread and call of a process its present effective priority.
///
/// # Cancellation
/// Dropping it leaves some of them at their old priority. The watchdog never does.
async fn order_anew(process: &Arc<Process>, pace: &mut Pace) {
    let mut next = Some(Member::FIRST);
    // Once the budget is used up again, the rest would be lowered at its next poll.
    while let Some(member) = next
        && !has_no_claim(process)
    {
        next = charging(process, || process.order_anew_from(member, MEMBERS_AT_A_TIME));
        pace.step().await;
    }
}

// ---- the watchdog ----

/// Counter of a kernel coroutine's steps since it let others run.
#[derive(Default)]
pub(crate) struct Pace {
    steps: usize,
}

impl Pace {
    /// Ends a step.
    ///
    /// # Cancellation
    /// Dropping it changes nothing.
    pub(crate) async fn step(&mut self) {
        self.steps += 1;
        if self.steps < STEPS_AT_A_TIME {
            let _ = crate::machine::on_interrupt();
            counters::count(Counter::Looks);
            stretch::looked();
        } else {
            self.steps = 0;
            executor::yield_now().await;
        }
    }
}

static BOUND_NS: AtomicU64 = AtomicU64::new(DEFAULT_BOUND_NS);
static DEFAULT_PERCENT: AtomicU64 = AtomicU64::new(DEFAULT_BUDGET_PERCENT);
static WATCHDOG: Mutex<Option<Waker>> = Mutex::new(None);

fn wake_watchdog() {
    let watchdog = WATCHDOG.lock().take();
    if let Some(watchdog) = watchdog {
        watchdog.wake();
    }
}

/// Returns the starvation bound in ticks; `None` if there is none.
pub(crate) fn bound_ticks() -> Option<u64> {
    match BOUND_NS.load(Ordering::Relaxed) {
        0 => None,
        bound => Some(time::ticks_at_ns(bound)),
    }
}

/// Returns the effective priority of a claim in the kernel's executor, if no process limits it: the priority behind it,
/// and never that of exhausted processes. So the three least important claims count for the same.
pub(crate) fn worth_of(claim: Priority) -> Priority {
    Priority::saturating((u64::from(claim.number()) + 1).min(u64::from(LEAST_CLAIM.number())))
}

/// Returns the most important claim of this effective priority; the least important one for [`EXHAUSTED`], which is no
/// claim's.
pub(crate) fn claim_worth(priority: Priority) -> Priority {
    if priority == EXHAUSTED { priority } else { Priority::saturating(u64::from(priority.number()).saturating_sub(1)) }
}

/// Converts a bitmap of priorities to one of claims, for programs, whose own bitmaps are of claims. Exhausted processes
/// stay behind all claims.
///
/// The least important claims, which count for the same, are shown as the last of them: they are equals, and none
/// yields to another.
pub(crate) fn claims_worth(priorities: u64) -> u64 {
    let last = EXHAUSTED.bit() | LEAST_CLAIM.bit();
    let others = priorities & Priority::HIGHEST.bit() | (priorities & !last) >> 1;
    if priorities & last == 0 { others } else { others | EXHAUSTED.bit() }
}

/// Reads the boot command line and starts the watchdog.
pub(crate) fn start(option: impl Fn(&str) -> Option<&'static str>) -> Result<(), &'static str> {
    if let Some(word) = option("scheduling") {
        match word {
            "chosen" => {}
            "relaxed" => set_system_mode(SystemMode::Relaxed),
            "strict" => set_system_mode(SystemMode::Strict),
            other => {
                println!("scheduling: `{other}` is none of chosen, relaxed and strict; each process has its own mode")
            }
        }
    }
    if let Some(word) = option("starvation-bound") {
        match word.parse::<u64>() {
            Ok(ms) => BOUND_NS.store(ms.saturating_mul(1_000_000), Ordering::Relaxed),
            Err(_) => println!("scheduling: the starvation bound is a number of milliseconds, not `{word}`"),
        }
    }
    if let Some(word) = option("budget") {
        match word.parse::<u64>() {
            Ok(percent) if percent > 0 => DEFAULT_PERCENT.store(percent, Ordering::Relaxed),
            _ => println!("scheduling: the budget is a number of hundredths of the machine, not `{word}`"),
        }
    }
    let reservation = time::Reservation::new().map_err(|_| "there is no memory for the scheduling watchdog's alarm")?;
    executor::spawn_for_kernel(Priority::HIGHEST, keep(reservation));
    Ok(())
}

/// Runs the watchdog: refills budgets, and prefers members of processes that have reached the starvation bound.
async fn keep(reservation: time::Reservation) {
    let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let mut next_look = 0;
    let mut ready_before = 0;
    // No look at the bench before this time: however often processes are exhausted, looking at all of them takes no
    // more than a fraction of a hart.
    let mut rests_until = 0;
    loop {
        // Before the look for work: work that is added afterwards ends the sleep.
        *WATCHDOG.lock() = Some(waker.clone());
        let mut deadline = rests_until;
        if Machine::now() >= rests_until {
            let (next, looked_at) = forgive().await;
            rests_until = Machine::now() + time::ticks_at_ns(LOOK_AT_ONE_NS) * looked_at as u64;
            deadline = next.max(rests_until);
        }
        let now = Machine::now();
        match bound_ticks() {
            None => ready_before = 0,
            Some(bound) => {
                if now >= next_look {
                    remainders::boost();
                    let ready = executor::waiting() & !EXHAUSTED.bit();
                    // A coroutine that has waited since the last look was ready then, at the same priority; except for
                    // calls to which their process's completer has not come.
                    let some_are_unseen = input::some_may_starve_unseen();
                    if ready & ready_before != 0 || some_are_unseen {
                        look_at_all_processes().await;
                    }
                    ready_before = ready;
                    next_look = Machine::now() + bound / 2;
                }
                deadline = deadline.min(next_look);
            }
        }
        if WATCHDOG.lock().is_none() {
            // There is more work since, and a step above that let others run has taken the wake-up.
            if now >= rests_until {
                continue;
            }
            deadline = deadline.min(rests_until);
        }
        sleep_until(&reservation, deadline).await;
    }
}

/// Waits for a time (all ones: for ever), or until the calling coroutine is woken.
///
/// # Cancellation
/// Dropping it leaves an alarm behind whose wake-up is spurious. The watchdog never does.
async fn sleep_until(reservation: &time::Reservation, deadline: u64) {
    let mut alarm = None;
    let mut slept = false;
    poll_fn(|cx| {
        if slept {
            return Poll::Ready(());
        }
        slept = true;
        if deadline != u64::MAX {
            alarm = Some(reservation.set(deadline, cx.waker()));
        }
        Poll::Pending
    })
    .await;
    if let Some(alarm) = alarm {
        time::clear(alarm);
    }
}

#[doc(alias = "sched_balance")]
async fn look_at_all_processes() {
    let mut pace = Pace::default();
    let mut id = 0;
    let mut count = 0;
    while let Some(process) = process::next_after(id) {
        id = process.id;
        look_for_one_that_starves(&process, &mut pace).await;
        count += 1;
        if count % PROCESSES_AT_A_TIME == 0 {
            pace.step().await;
        }
    }
}

/// Prefers one worker, thread or call of a process that has been ready since an earlier look without a turn: the next
/// one after the last that was preferred. No other is preferred while that one waits for its turn.
async fn look_for_one_that_starves(process: &Arc<Process>, pace: &mut Pace) {
    let standing = &process.standing;
    let preferred = Cid::from_raw(standing.preferred.load(Ordering::Relaxed));
    let waits = |cid| executor::state(cid) == Some(State::Ready) && executor::priority(cid) == Some(Priority::HIGHEST);
    if has_no_claim(process) || waits(preferred) {
        return;
    }
    let begin = Member::from_word(standing.next_look.load(Ordering::Relaxed));
    let (mut member, mut has_wrapped) = (begin, false);
    loop {
        match charging(process, || process.look_for_the_starving(member, MEMBERS_AT_A_TIME)) {
            Look::Found(cid, next) => {
                standing.preferred.store(cid.raw(), Ordering::Relaxed);
                standing.next_look.store(next.to_word(), Ordering::Relaxed);
                standing.boosted();
                return;
            }
            Look::More(next) if !has_wrapped || next < begin => member = next,
            Look::End if !has_wrapped => (member, has_wrapped) = (Member::FIRST, true),
            Look::More(_) | Look::End => return,
        }
        if has_no_claim(process) {
            return;
        }
        pace.step().await;
    }
}

// ---- modes ----

fn set_system_mode(mode: SystemMode) {
    if mode == SystemMode::Strict {
        stretch::watch_returns();
    }
    shared::publish_mode(mode);
    let mut id = 0;
    while let Some(process) = process::next_after(id) {
        id = process.id;
        process.interrupt_all_workers();
    }
}

// ---- calls ----

/// Returns the process that a call names: 0 is the caller.
fn meant(caller: &Arc<Process>, id: u32) -> Result<Arc<Process>, Errno> {
    if id == 0 || id == caller.id { Ok(caller.clone()) } else { process::find(id).ok_or(Errno::ESRCH) }
}

/// Performs the `get_scheduling` call.
pub(crate) fn get(caller: &Arc<Process>, id: u32, buffer: UserBuffer) -> Result<usize, Errno> {
    let process = meant(caller, id)?;
    authority::permit_towards(caller, &process, Act::Inspect)?;
    let words = describe(&process).words();
    let mut bytes = [0; size_of::<Scheduling>()];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    caller.copy_out(buffer.address(), &bytes[..bytes.len().min(buffer.len())])?;
    Ok(bytes.len())
}

/// Describes the present scheduling of a process.
pub(crate) fn describe(process: &Process) -> Scheduling {
    let standing = &process.standing;
    let limit = {
        let mut limits = standing.budget.limits.lock();
        let now = Machine::now();
        limits.all().for_each(|limit| limit.advance(now));
        limits.effective()
    };
    Scheduling {
        ceiling: standing.ceiling().number().into(),
        priority: claim_worth(process.claimed_priority()).number().into(),
        mode: standing.mode() as u64,
        privilege: process.authority.permits(Act::ScheduleMore).into(),
        budget_ns: if limit.ticks == u64::MAX { scheduling::NO_LIMIT } else { time::ns_at_ticks(limit.ticks) },
        period_ns: time::ns_at_ticks(limit.period),
        used_ns: time::ns_at_ticks(limit.used),
        cpu_ns: time::ns_at_ticks(process.cpu_ticks()),
        exhausted: standing.times_exhausted.load(Ordering::Relaxed).into(),
        boosts: standing.boosts.load(Ordering::Relaxed).into(),
    }
}

/// Performs the `set_scheduling` call.
#[doc(alias = "sched_setattr")]
#[doc(alias = "setpriority")]
pub(crate) fn set(caller: &Arc<Process>, id: u32, attribute: u32, value: u64, period_ns: u64) -> Result<(), Errno> {
    let process = meant(caller, id)?;
    if attribute != scheduling::PRIVILEGE {
        authority::permit_towards(caller, &process, Act::Schedule)?;
    }
    let privileged = caller.authority.permits(Act::ScheduleMore);
    let standing = &process.standing;
    match attribute {
        scheduling::CEILING => {
            let ceiling = u8::try_from(value).ok().and_then(Priority::new).ok_or(Errno::EINVAL)?;
            // No process gives more than it has.
            if !privileged && ceiling.is_more_important_than(caller.standing.ceiling()) {
                return Err(Errno::EPERM);
            }
            standing.ceiling.store(ceiling.number(), Ordering::Relaxed);
            process.shared.tell_ceiling(ceiling);
            process.order_workers_anew();
            process.interrupt_all_workers();
        }
        scheduling::BUDGET => {
            if !(scheduling::SHORTEST_PERIOD_NS..=scheduling::LONGEST_PERIOD_NS).contains(&period_ns) || value == 0 {
                return Err(Errno::EINVAL);
            }
            if standing.budget.depth >= DEEPEST {
                return Err(Errno::EAGAIN);
            }
            let period = time::ticks_at_ns(period_ns);
            let ticks = if value == scheduling::NO_LIMIT { u64::MAX } else { time::ticks_at_ns(value) };
            let by = match (privileged, Arc::ptr_eq(&process, caller)) {
                (true, _) => By::Privileged,
                (false, true) => By::Itself,
                (false, false) => By::Parent,
            };
            let now = Machine::now();
            let before = standing.budget.refilled_at(now);
            standing.budget.change(ticks, period, by, now)?;
            standing.budget.covers_children.store(true, Ordering::Relaxed);
            // The watchdog sleeps until the first refill that it has seen. Its looks are charged to no process, so no
            // other change wakes it.
            if standing.budget.refilled_at(now) < before {
                wake_watchdog();
            }
        }
        scheduling::MODE => {
            let mode = Mode::from_number(value).ok_or(Errno::EINVAL)?;
            if mode == Mode::Strict {
                stretch::watch_returns();
            }
            standing.mode.store(mode as u8, Ordering::Relaxed);
            process.shared.tell_mode(mode);
            process.interrupt_all_workers();
        }
        scheduling::PRIVILEGE => {
            if value > 1 {
                return Err(Errno::EINVAL);
            }
            authority::give_all_or_nothing(caller, &process, value == 1)?;
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(())
}

/// Performs the `set_system_scheduling` call.
pub(crate) fn set_system(caller: &Process, attribute: u32, value: u64) -> Result<(), Errno> {
    if !matches!(attribute, system_scheduling::MODE | system_scheduling::STARVATION_BOUND) {
        return Err(Errno::EINVAL);
    }
    authority::permit(caller, Act::ScheduleSystem)?;
    if attribute == system_scheduling::MODE {
        set_system_mode(SystemMode::from_number(value).ok_or(Errno::EINVAL)?);
    } else {
        if value != 0 && value < system_scheduling::SHORTEST_BOUND_NS {
            return Err(Errno::EINVAL);
        }
        BOUND_NS.store(value, Ordering::Relaxed);
        wake_watchdog();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn budget(ticks: u64, period: u64, above: Option<Arc<Budget>>) -> Budget {
        Budget::new(TimeQuota::new(ticks, period, 0), above)
    }

    #[test]
    fn a_budget_is_used_up_and_refilled() {
        let budget = budget(30, 100, None);
        assert!(!budget.charge(29, 29, false));
        assert!(budget.charge(11, 40, false), "an overrun is possible");
        assert!(budget.charge(50, 90, true), "what is taken behind everybody else is free");
        assert_eq!(budget.refilled_at(90), 100);
        // Ten ticks were an overrun.
        assert!(!budget.charge(19, 119, false));
        assert!(budget.charge(1, 120, false));
        assert_eq!(budget.refilled_at(120), 200);
        assert_eq!(budget.refilled_at(200), 200);
        assert!(!budget.charge(29, 1000, false));
    }

    #[test]
    fn a_budget_above_covers_all_below() {
        let above = Arc::new(budget(40, 100, None));
        let one = budget(u64::MAX, 100, Some(above.clone()));
        let other = budget(30, 100, Some(above));
        assert!(!one.charge(20, 20, false));
        assert!(!other.charge(15, 40, false));
        assert!(one.charge(5, 50, false));
        assert!(other.charge(1, 55, false), "the common one is used up");
        assert_eq!(other.refilled_at(60), 100);
        assert!(!other.charge(1, 101, false));
    }

    #[test]
    fn claims_keep_their_order_below_the_ceiling() {
        let standing = Standing::new(Priority::HIGHEST, Mode::Relaxed, Arc::new(budget(u64::MAX, 100, None)));
        let priority = |number| Priority::new(number).unwrap();
        assert_eq!(standing.worth(Priority::HIGHEST), MOST_CLAIM);
        assert_eq!(standing.worth(priority(1)), priority(2), "no two important claims are worth the same");
        assert_eq!(standing.worth(priority(61)), LEAST_CLAIM);
        assert_eq!(standing.worth(Priority::LOWEST), LEAST_CLAIM);
        for number in 0..62 {
            let (claim, worth) = (priority(number), standing.worth(priority(number)));
            assert_eq!(claim_worth(worth), claim);
            let shown = if number < 61 { claim } else { Priority::LOWEST };
            assert_eq!(claims_worth(worth.bit()), shown.bit());
        }
        assert_eq!(claim_worth(EXHAUSTED), Priority::LOWEST);
        let others = Priority::HIGHEST.bit() | EXHAUSTED.bit();
        assert_eq!(claims_worth(others), others);
        assert_eq!(claims_worth(LEAST_CLAIM.bit()), EXHAUSTED.bit(), "equals do not give way to each other");
        assert_eq!(standing.limit(Priority::HIGHEST), Priority::HIGHEST, "who starves goes before all claims");
        standing.ceiling.store(5, Ordering::Relaxed);
        assert_eq!(standing.worth(Priority::HIGHEST), priority(6));
        assert_eq!(standing.worth(priority(7)), priority(8));
        standing.exhausted.store(true, Ordering::Relaxed);
        assert_eq!(standing.worth(Priority::HIGHEST), EXHAUSTED);
        assert_eq!(standing.limit(Priority::HIGHEST), EXHAUSTED, "a process without budget does not starve");
        assert!(LEAST_CLAIM.is_more_important_than(EXHAUSTED));
        assert!(Priority::HIGHEST.is_more_important_than(MOST_CLAIM));
    }

    #[test]
    fn changing_a_budget_refills_nothing() {
        let budget = budget(30, 100, None);
        assert!(!budget.charge(29, 129, false));
        // An equal limit, and a smaller share, set by each caller that may.
        for by in [By::Itself, By::Parent] {
            assert_eq!(budget.change(30, 100, by, 129), Ok(()));
        }
        assert_eq!(budget.change(15, 100, By::Itself, 129), Ok(()));
        assert!(budget.charge(1, 130, false));
        assert_eq!(budget.refilled_at(130), 200);
        assert_eq!(budget.change(30, 300, By::Itself, 130), Ok(()));
        assert!(budget.refilled_at(130) >= 200);
        // A privileged process may give more, of which as large a part is used, and as much of the period has passed.
        assert_eq!(budget.change(60, 200, By::Privileged, 130), Ok(()));
        assert_eq!(budget.refilled_at(130), 130 - 60 + 200);
        assert_eq!(budget.change(u64::MAX, 200, By::Privileged, 130), Ok(()));
        assert_eq!(budget.refilled_at(130), 130);
    }

    #[test]
    fn a_shorter_period_is_refilled_earlier() {
        for by in [By::Itself, By::Parent] {
            let budget = budget(30, 100, None);
            assert_eq!(budget.change(20, 100, by, 0), Ok(()));
            assert!(budget.charge(20, 50, false));
            assert_eq!(budget.refilled_at(50), 100);
            assert_eq!(budget.change(2, 10, by, 50), Ok(()));
            assert_eq!(budget.refilled_at(50), 55);
        }
    }

    #[test]
    fn only_the_privileged_give_more() {
        for by in [By::Itself, By::Parent] {
            let budget = budget(30, 100, None);
            for (ticks, period) in [(31, 100), (30, 99), (31, 1000), (300, 1000), (u64::MAX, 100)] {
                assert_eq!(budget.change(ticks, period, by, 0), Err(Errno::EPERM), "{ticks} of {period}");
                assert_eq!(budget.change(ticks, period, By::Privileged, 0), Ok(()));
                assert_eq!(budget.change(30, 100, By::Privileged, 0), Ok(()));
            }
            assert_eq!(budget.change(30, 1000, by, 0), Ok(()));
        }
    }

    #[test]
    fn time_above_the_lowest_priority_is_charged_although_nothing_is_left() {
        let budget = budget(30, 100, None);
        assert!(budget.charge(30, 30, false));
        assert!(budget.charge(30, 60, true));
        assert_eq!(budget.refilled_at(60), 100);
        assert!(budget.charge(30, 90, false));
        assert_eq!(budget.refilled_at(90), 200);
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// A process that takes as much as it can while it may never gets more than its share, but for one overrun.
        #[test]
        fn the_share_holds_over_time(
            ticks in 1u64..90,
            turns in prop::collection::vec((1u64..20, 0u64..30), 1..200),
        ) {
            let budget = budget(ticks, 100, None);
            let (mut now, mut taken) = (0, 0);
            for (run, pause) in turns {
                now = budget.refilled_at(now).max(now);
                now += run;
                taken += run;
                budget.charge(run, now, false);
                prop_assert!(taken <= (now / 100 + 1) * ticks + 20, "{taken} of {now}");
                now += pause;
            }
        }

        /// This holds too if it sets other limits all the time, and its parent changes the given one.
        #[test]
        fn no_change_gives_more(
            ticks in 1u64..90,
            turns in prop::collection::vec((1u64..20, 0u64..30, 1u64..90, 1u64..300, any::<bool>()), 1..200),
        ) {
            let budget = budget(ticks, 100, None);
            let (mut now, mut taken) = (0, 0);
            for (run, pause, other, period, parent) in turns {
                now = budget.refilled_at(now).max(now);
                now += run;
                taken += run;
                budget.charge(run, now, false);
                prop_assert!(taken <= (now / 100 + 1) * ticks + 20, "{taken} of {now}");
                let _ = match parent {
                    true => budget.change(ticks, 100, By::Parent, now),
                    false => budget.change(other, period, By::Itself, now),
                };
                now += pause;
            }
        }

        #[test]
        fn refilling_is_neither_early_nor_late(ticks in 1u64..90, used in 0u64..1000, now in 0u64..500) {
            let budget = budget(ticks, 100, None);
            budget.limits.lock().given.used = used;
            let at = budget.refilled_at(now);
            prop_assert!(at >= now);
            prop_assert_eq!(budget.refilled_at(at), at);
            if at > now {
                budget.limits.lock().given = TimeQuota { ticks, period: 100, used, period_start: 0 };
                prop_assert!(budget.refilled_at(at - 1) > at - 1);
            }
        }
    }
}
