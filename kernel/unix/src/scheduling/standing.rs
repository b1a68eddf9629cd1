//! The standing of a process beside others: its ceiling, its budget, and the effective priority of its claims.
//!
//! Amounts and rules, without processes and coroutines: [`scheduling`](crate::scheduling) applies them.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Add;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use core::task::Waker;

use abi_queue::{Mode, Priority};
use abi_unix::{Counter, Errno};
use hal_api::Machine as _;
use platform::Machine;
use spin::Mutex;

use crate::observing::counters;
use crate::scheduling::executor::EXHAUSTED;
use crate::time;

/// The most that a claim counts for. [`Priority::HIGHEST`] is for the kernel's own coroutines, for processes that end,
/// and for those that starve: they are in front of all claims, and in one queue among themselves. If they shared a
/// priority with claims, a process with many workers that never rest would be in front of them, a slice for each
/// worker.
pub(crate) const MOST_CLAIM: Priority = Priority::saturating(1);
/// The least that a claim counts for while there is budget left.
pub(crate) const LEAST_CLAIM: Priority = Priority::saturating(abi_queue::PRIORITIES as u64 - 2);

/// Period of the default budget.
pub(super) const DEFAULT_PERIOD_NS: u64 = 100_000_000;
/// Default budget of a process, in hundredths of the time of all harts.
pub(super) const DEFAULT_BUDGET_PERCENT: u64 = 95;
/// Greatest depth of budgets that cover children within each other.
pub(super) const DEEPEST: u32 = 8;

// ---- budgets ----

/// A limit of processor time in ticks, and the time used of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeQuota {
    /// Ticks in each period; all ones for no limit.
    pub(super) ticks: u64,
    pub(super) period: u64,
    pub(super) used: u64,
    period_start: u64,
}

impl TimeQuota {
    pub(super) fn new(ticks: u64, period: u64, now: u64) -> TimeQuota {
        TimeQuota { ticks, period, used: 0, period_start: now }
    }

    /// Begins the periods that have begun by now. Each pays back the overrun of those before it.
    pub(super) fn advance(&mut self, now: u64) {
        let periods = now.saturating_sub(self.period_start) / self.period.max(1);
        if periods > 0 {
            self.used = self.used.saturating_sub(self.ticks.saturating_mul(periods));
            self.period_start += periods * self.period;
        }
    }

    pub(super) fn is_used_up(&self) -> bool {
        self.used >= self.ticks
    }

    /// Charges time to the limit. Time that was taken while all others went before is free if nothing is left.
    pub(super) fn charge(&mut self, ticks: u64, now: u64, behind_all: bool) {
        self.advance(now);
        if !behind_all || !self.is_used_up() {
            self.used = self.used.saturating_add(ticks);
        }
    }

    /// Returns the beginning of the next period in which the limit is not used up; `now` if it is not.
    pub(super) fn refilled_at(&mut self, now: u64) -> u64 {
        self.advance(now);
        if !self.is_used_up() {
            return now;
        }
        let periods = self.used / self.ticks.max(1);
        self.period_start.saturating_add(periods.max(1).saturating_mul(self.period))
    }

    /// Returns whether this much time in each period is neither a greater share nor more at once.
    pub(super) fn allows(&self, ticks: u64, period: u64) -> bool {
        // Shares are compared as products, which 128 bits hold.
        ticks <= self.ticks
            && u128::from(ticks) * u128::from(self.period) <= u128::from(self.ticks) * u128::from(period)
    }

    /// Becomes another limit with the same part used, at the same place of the period: changing a limit refills
    /// nothing.
    pub(super) fn change(&mut self, ticks: u64, period: u64, now: u64) {
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
pub(super) struct TimeQuotas {
    /// The limit that its parent or a privileged process has given, or the default.
    given: TimeQuota,
    /// The limit that the process has chosen itself.
    chosen: Option<TimeQuota>,
}

impl TimeQuotas {
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut TimeQuota> {
        [&mut self.given].into_iter().chain(self.chosen.as_mut())
    }

    pub(super) fn is_used_up(&self) -> bool {
        self.given.is_used_up() || self.chosen.is_some_and(|chosen| chosen.is_used_up())
    }

    /// Returns the limit that restricts more.
    pub(super) fn effective(&self) -> TimeQuota {
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
    pub(super) limits: Mutex<TimeQuotas>,
    /// Set if a limit was used up at the last look; written with the limits locked.
    used_up: AtomicBool,
    /// Set if the budget was set, so that it covers children.
    pub(super) covers_children: AtomicBool,
    /// The budget of an ancestor that covers this process too.
    above: Option<Arc<Budget>>,
    pub(super) depth: u32,
}

impl Budget {
    pub(super) fn new(given: TimeQuota, above: Option<Arc<Budget>>) -> Budget {
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
    pub(super) fn charge(&self, ticks: u64, now: u64, behind_all: bool) -> bool {
        let above = self.above.as_ref().is_some_and(|above| above.charge(ticks, now, behind_all));
        let mut limits = self.limits.lock();
        limits.given.charge(ticks, now, behind_all);
        if let Some(chosen) = &mut limits.chosen {
            chosen.charge(ticks, now, behind_all);
        }
        self.note(&limits) | above
    }

    /// Records whether one of the limits is used up.
    pub(super) fn note(&self, limits: &TimeQuotas) -> bool {
        let used_up = limits.is_used_up();
        self.used_up.store(used_up, Ordering::Relaxed);
        used_up
    }

    /// Returns the beginning of the next period in which none of the budgets is used up; `now` if none is.
    pub(super) fn refilled_at(&self, now: u64) -> u64 {
        let above = self.above.as_ref().map_or(now, |above| above.refilled_at(now));
        let mut limits = self.limits.lock();
        let at = limits.all().fold(above, |at, limit| at.max(limit.refilled_at(now)));
        self.note(&limits);
        at
    }

    /// Returns whether a budget above was used up at its last look. Mostly there is none.
    #[inline(always)]
    pub(super) fn was_used_up_above(&self) -> bool {
        self.above.as_ref().is_some_and(|above| above.was_used_up())
    }

    pub(super) fn was_used_up(&self) -> bool {
        self.used_up.load(Ordering::Relaxed) || self.was_used_up_above()
    }

    /// Changes the given or the chosen limit of the process. `EPERM` for more than was given, unless the caller is
    /// privileged.
    pub(super) fn change(&self, ticks: u64, period: u64, by: Setter, now: u64) -> Result<(), Errno> {
        let mut limits = self.limits.lock();
        if by != Setter::Privileged && (ticks == u64::MAX || !limits.given.allows(ticks, period)) {
            return Err(Errno::EPERM);
        }
        match by {
            Setter::Itself => {
                limits.chosen.get_or_insert(TimeQuota::new(u64::MAX, period, now)).change(ticks, period, now);
            }
            Setter::Parent => limits.given.change(ticks, period, now),
            Setter::Privileged => {
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
pub(super) enum Setter {
    Itself,
    Parent,
    Privileged,
}

/// Scheduling state and settings of one process.
#[doc(alias = "sched_entity")]
#[derive(Debug)]
pub(crate) struct Standing {
    pub(super) ceiling: AtomicU8,
    pub(super) mode: AtomicU8,
    pub(super) budget: Arc<Budget>,
    /// Set while its claims count for nothing, until its budget is refilled.
    pub(super) exhausted: AtomicBool,
    /// Set while it is on the penalty bench; written with that locked.
    pub(super) benched: AtomicBool,
    /// Set while frames for it are behind those of others because its budget is used up.
    pub(super) frames_behind: AtomicBool,
    /// Its worker, thread or call that runs before its turn, because of the starvation bound.
    pub(super) preferred: AtomicU64,
    /// Member with which the watchdog's next look at it begins.
    pub(super) next_look: AtomicU64,
    pub(super) times_exhausted: AtomicU32,
    pub(super) boosts: AtomicU32,
    /// Ticks that were charged to it.
    pub(super) cpu: AtomicU64,
    /// The most ticks that its clock has shown.
    shown: AtomicU64,
    /// The part of the time that the kernel has used for it.
    // Apart, since it is looked at rarely: in a larger process, calls need more instructions to find other things.
    pub(crate) kernel: Box<KernelTime>,
}

/// Processor time, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsedTime {
    /// That of the program.
    pub user: u64,
    /// That of the kernel for it.
    pub system: u64,
}

impl UsedTime {
    /// Returns both parts in nanoseconds.
    pub(crate) fn ns(self) -> [u64; 2] {
        [self.user, self.system].map(time::ns_at_ticks)
    }
}

impl Add for UsedTime {
    type Output = UsedTime;

    fn add(self, other: UsedTime) -> UsedTime {
        UsedTime { user: self.user + other.user, system: self.system + other.system }
    }
}

/// The part of the time of a process, or of one of its threads, that the kernel has used for it.
///
/// Long work is measured. All other time is divided as the timer's interrupts in it are: those that come from the
/// program, and those that had to wait for the end of a call. A clock that is read at each trap would make every call
/// longer.
#[doc(alias = "cputime_adjust")]
#[derive(Debug, Default)]
pub(crate) struct KernelTime {
    measured: AtomicU64,
    samples_of_program: AtomicU32,
    samples_of_kernel: AtomicU32,
    /// The parts that were told last, of which none is ever less later.
    told: Mutex<UsedTime>,
}

impl KernelTime {
    /// Does long work for the process, which is measured.
    pub(crate) fn measure<R>(&self, work: impl FnOnce() -> R) -> R {
        let begin = Machine::now();
        let result = work();
        self.measured.fetch_add(Machine::now().saturating_sub(begin), Ordering::Relaxed);
        result
    }

    /// Counts an interrupt of the timer, in a call or in the program.
    pub(crate) fn sample(&self, was_in_call: bool) {
        let samples = if was_in_call { &self.samples_of_kernel } else { &self.samples_of_program };
        samples.fetch_add(1, Ordering::Relaxed);
    }

    /// Divides so much time.
    pub(crate) fn divide(&self, total: u64) -> UsedTime {
        let measured = self.measured.load(Ordering::Relaxed).min(total);
        let [program, kernel] = [&self.samples_of_program, &self.samples_of_kernel]
            .map(|samples| u128::from(samples.load(Ordering::Relaxed)));
        let rest = u128::from(total - measured) * kernel / (program + kernel).max(1);
        let mut told = self.told.lock();
        // Ticks that have been added since belong to either part.
        let most = told.system + total.saturating_sub(told.user + told.system);
        let system = (measured + rest as u64).clamp(told.system, most);
        *told = UsedTime { user: total.max(told.user + told.system) - system, system };
        *told
    }
}

/// Returns a reading of a clock of processor time, and at least as much as the earlier ones.
///
/// Ticks of a program that runs are counted before they are charged. If another process is charged for some of them in
/// the end, or another hart reads between the two, the sum is smaller later.
pub(crate) fn never_back(shown: &AtomicU64, ticks: u64) -> u64 {
    // Relaxed: the word stands for itself.
    shown.fetch_max(ticks, Ordering::Relaxed).max(ticks)
}

impl Standing {
    pub(super) fn new(ceiling: Priority, mode: Mode, budget: Arc<Budget>) -> Standing {
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
            shown: AtomicU64::new(0),
            kernel: Box::default(),
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

    /// Limits a priority for use within the process. Among its own calls and coroutines all priorities within its
    /// ceiling differ; [`worth`](Self::worth) tells their effective priority beside other processes.
    pub(crate) fn within_ceiling(&self, priority: Priority) -> Priority {
        priority.limited_to(self.ceiling())
    }

    /// Returns the effective priority of a claim while there is budget left.
    pub(super) fn claim(&self, claim: Priority) -> Priority {
        worth_of(self.within_ceiling(claim))
    }

    /// Limits a priority that the process may have to the lowest one while the budget is used up.
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
    #[cfg(test)]
    pub(crate) fn charged(&self) -> u64 {
        self.cpu.load(Ordering::Relaxed)
    }

    /// Returns the ticks of its processor time: those that were charged to it, and those of programs that run.
    pub(crate) fn clock(&self, running: impl FnOnce() -> u64) -> u64 {
        // Read first: a worker that another hart charges in between is left out of both, and not in both, which would
        // stay. Acquire, which pairs with the charge's release: a charge that is seen has ended the worker's own time.
        let charged = self.cpu.load(Ordering::Acquire);
        never_back(&self.shown, charged + running())
    }
}

// ---- claims ----

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

// ---- waking the watchdog ----

pub(super) static DEFAULT_PERCENT: AtomicU64 = AtomicU64::new(DEFAULT_BUDGET_PERCENT);
pub(super) static WATCHDOG: Mutex<Option<Waker>> = Mutex::new(None);

pub(super) fn wake_watchdog() {
    let watchdog = WATCHDOG.lock().take();
    if let Some(watchdog) = watchdog {
        watchdog.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn budget(ticks: u64, period: u64, above: Option<Arc<Budget>>) -> Budget {
        Budget::new(TimeQuota::new(ticks, period, 0), above)
    }

    #[test]
    fn time_is_divided_as_the_timer_has_found_it() {
        let kernel = KernelTime::default();
        assert_eq!(kernel.divide(100), UsedTime { user: 100, system: 0 });
        for was_in_call in [true, true, false, true] {
            kernel.sample(was_in_call);
        }
        // Ticks that were told before stay.
        assert_eq!(kernel.divide(1000), UsedTime { user: 250, system: 750 });
        assert_eq!(kernel.divide(900), UsedTime { user: 250, system: 750 }, "a clock never goes back");
        let kernel = KernelTime::default();
        kernel.measured.store(400, Ordering::Relaxed);
        assert_eq!(kernel.divide(1000), UsedTime { user: 600, system: 400 });
        kernel.sample(true);
        assert_eq!(kernel.divide(1100), UsedTime { user: 600, system: 500 });
        assert_eq!(kernel.divide(u64::MAX), UsedTime { user: 600, system: u64::MAX - 600 });
    }

    /// Whatever comes in between, no part is ever less than before, and together they are all of the time.
    #[test]
    fn parts_of_time_never_go_back() {
        let kernel = KernelTime::default();
        let (mut word, mut total, mut before) = (1u64, 0, UsedTime::default());
        for _ in 0..10_000 {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            match word >> 61 {
                0..3 => kernel.sample(word & 1 << 60 != 0),
                3 => {
                    kernel.measured.fetch_add(word >> 40 & 0xff, Ordering::Relaxed);
                    total += word >> 40 & 0xff;
                }
                _ => total += word >> 40 & 0xfff,
            }
            let now = kernel.divide(total);
            assert_eq!(now.user + now.system, total);
            assert!(now.user >= before.user && now.system >= before.system, "{before:?} {now:?}");
            before = now;
        }
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
        for by in [Setter::Itself, Setter::Parent] {
            assert_eq!(budget.change(30, 100, by, 129), Ok(()));
        }
        assert_eq!(budget.change(15, 100, Setter::Itself, 129), Ok(()));
        assert!(budget.charge(1, 130, false));
        assert_eq!(budget.refilled_at(130), 200);
        assert_eq!(budget.change(30, 300, Setter::Itself, 130), Ok(()));
        assert!(budget.refilled_at(130) >= 200);
        // A privileged process may give more, of which as large a part is used, and as much of the period has passed.
        assert_eq!(budget.change(60, 200, Setter::Privileged, 130), Ok(()));
        assert_eq!(budget.refilled_at(130), 130 - 60 + 200);
        assert_eq!(budget.change(u64::MAX, 200, Setter::Privileged, 130), Ok(()));
        assert_eq!(budget.refilled_at(130), 130);
    }

    #[test]
    fn a_shorter_period_is_refilled_earlier() {
        for by in [Setter::Itself, Setter::Parent] {
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
        for by in [Setter::Itself, Setter::Parent] {
            let budget = budget(30, 100, None);
            for (ticks, period) in [(31, 100), (30, 99), (31, 1000), (300, 1000), (u64::MAX, 100)] {
                assert_eq!(budget.change(ticks, period, by, 0), Err(Errno::EPERM), "{ticks} of {period}");
                assert_eq!(budget.change(ticks, period, Setter::Privileged, 0), Ok(()));
                assert_eq!(budget.change(30, 100, Setter::Privileged, 0), Ok(()));
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
                    true => budget.change(ticks, 100, Setter::Parent, now),
                    false => budget.change(other, period, Setter::Itself, now),
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
