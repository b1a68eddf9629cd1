//! Who may run when: ceilings, budgets, the starvation bound, and the mode that executors follow.
//!
//! The order of priorities is the scheduler's. What a process publishes in its process page is only a claim, and this module
//! is what keeps claims from being worth more than they should:
//!
//! * **Ceiling.** No claim of a process counts for more. Children inherit it.
//! * **Budget.** So much processor time in each period, over all harts and workers of the process. When it is used up the
//!   process is [`EXHAUSTED`], behind everybody who has not used up theirs, until the next period. What it takes then is
//!   what nobody else wanted, and costs it nothing. Time is charged when a worker leaves user mode for good and at
//!   each interrupt that finds it there, so an overrun is at most a slice; it is paid back in the next period. Everybody
//!   has the default budget; a budget that somebody set covers the children that are started afterwards too, so that it
//!   cannot be escaped by starting more of them.
//! * **Starvation bound.** Whoever has been ready for that long runs, however unimportant: the *keeper*, a kernel coroutine,
//!   looks twice in each bound at who is ready, and whoever has not had a turn from one look to the next becomes the most
//!   important of all until it has had a slice. It looks at all processes only if something was ready at one priority at
//!   both looks, which is rare on a machine that keeps up. So many processes that claim everything, each within its
//!   budget, cannot keep others from running either.
//!
//! **Mode** is not protection but precision: a *strict* executor compares itself with the global bitmap before each of its
//! polls. The kernel's part is to keep that bitmap up to date at each return to user mode, from when the first process
//! asks for it ([`strictness_matters`]).
//!
//! Setting any of this is decoded here too. A process may restrict itself and its children; more needs the privilege.
//!
//! The rejected way of a budget is a priority that decays with use (Unix's, and fair schedulers'): it makes all
//! priorities soft, and the most important coroutine of a server that is at its work would fall behind a batch job.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use core::task::{Poll, Waker};

use abi_queue::{Mode, Priority, SystemMode};
use abi_unix::types::{Scheduling, scheduling, system_scheduling};
use abi_unix::{Counter, Errno};
use hal_api::Machine as _;
use platform::{Machine, println};
use spin::Mutex;

use crate::process::{self, Process};
use crate::user::UserBuffer;
use crate::{counters, executor, input, shared, time};

/// The priority of a process whose budget is used up. Claims count for at least one more, so that this is behind all others.
pub const EXHAUSTED: Priority = Priority::LOWEST;
/// The least that a claim counts for while there is budget left.
const LEAST_CLAIM: Priority = Priority::saturating(abi_queue::PRIORITIES as u64 - 2);

/// The period of budgets that nobody set.
const DEFAULT_PERIOD_NS: u64 = 100_000_000;
/// What of it everybody has, in hundredths of the time of all harts.
const DEFAULT_BUDGET_PERCENT: u64 = 95;
/// Budgets that cover children can lie within each other this deep.
const DEEPEST: u32 = 8;
/// The starvation bound unless the boot command line says otherwise.
const DEFAULT_BOUND_NS: u64 = 1_000_000_000;
/// After so many processes the keeper lets others run.
const PROCESSES_AT_A_TIME: usize = 64;

// ---- budgets ----

/// A limit of processor time in ticks, and what was used of it.
#[derive(Clone, Copy, Debug)]
struct Limit {
    /// Ticks in each period; all ones: no limit.
    ticks: u64,
    period: u64,
    used: u64,
    period_start: u64,
}

impl Limit {
    /// Begins the periods that have begun by now. Each pays back what the ones before took too much.
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
}

/// A process's budget.
#[derive(Debug)]
pub struct Budget {
    limit: Mutex<Limit>,
    /// Somebody set it, so that it covers children.
    covers_children: AtomicBool,
    /// That of a process further up, which covers this one.
    above: Option<Arc<Budget>>,
    depth: u32,
}

impl Budget {
    /// The budget of a process that nobody restricts, whose parent has this one.
    pub fn below(parent: Option<&Arc<Budget>>) -> Arc<Budget> {
        let above = parent.and_then(|parent| {
            if parent.covers_children.load(Ordering::Relaxed) { Some(parent.clone()) } else { parent.above.clone() }
        });
        let period = time::ticks_at_ns(DEFAULT_PERIOD_NS);
        let percent = DEFAULT_PERCENT.load(Ordering::Relaxed);
        let ticks = if percent >= 100 { u64::MAX } else { period * crate::harts() as u64 * percent / 100 };
        let depth = above.as_ref().map_or(0, |above| above.depth + 1);
        let limit = Limit { ticks, period, used: 0, period_start: Machine::now() };
        Arc::new(Budget { limit: Mutex::new(limit), covers_children: AtomicBool::new(false), above, depth })
    }

    /// Takes time off this budget and those above; whether one of them is used up.
    ///
    /// What was used up already stays as it is: time that a process takes while all others go before it is free.
    fn charge(&self, ticks: u64, now: u64) -> bool {
        let mut used_up = self.above.as_ref().is_some_and(|above| above.charge(ticks, now));
        let mut limit = self.limit.lock();
        limit.advance(now);
        if !limit.is_used_up() {
            limit.used = limit.used.saturating_add(ticks);
        }
        used_up |= limit.is_used_up();
        used_up
    }

    /// When a period begins in which none of the budgets is used up; `now` if none is.
    fn refilled_at(&self, now: u64) -> u64 {
        let above = self.above.as_ref().map_or(now, |above| above.refilled_at(now));
        let mut limit = self.limit.lock();
        limit.advance(now);
        if !limit.is_used_up() {
            return above;
        }
        let periods = limit.used / limit.ticks.max(1);
        above.max(limit.period_start + periods.max(1) * limit.period)
    }
}

/// What is known and set about how one process is scheduled.
#[derive(Debug)]
pub struct Standing {
    ceiling: AtomicU8,
    privileged: AtomicBool,
    mode: AtomicU8,
    budget: Arc<Budget>,
    /// It is one of [`PENALTY_BENCH`].
    exhausted: AtomicBool,
    times_exhausted: AtomicU32,
    boosts: AtomicU32,
    /// Ticks that its workers have used and were charged.
    cpu: AtomicU64,
}

impl Standing {
    fn new(ceiling: Priority, mode: Mode, privileged: bool, budget: Arc<Budget>) -> Standing {
        Standing {
            ceiling: AtomicU8::new(ceiling.number()),
            privileged: AtomicBool::new(privileged),
            mode: AtomicU8::new(mode as u8),
            budget,
            exhausted: AtomicBool::new(false),
            times_exhausted: AtomicU32::new(0),
            boosts: AtomicU32::new(0),
            cpu: AtomicU64::new(0),
        }
    }

    /// That of the first process.
    pub fn of_the_first() -> Standing {
        Standing::new(Priority::HIGHEST, Mode::Relaxed, true, Budget::below(None))
    }

    /// That of a child: it inherits ceiling and mode, is covered by budgets that were set, and has no privilege.
    pub fn inherited(&self) -> Standing {
        Standing::new(self.ceiling(), self.mode(), false, Budget::below(Some(&self.budget)))
    }

    /// No claim counts for more than this.
    pub fn ceiling(&self) -> Priority {
        Priority::saturating(self.ceiling.load(Ordering::Relaxed).into())
    }

    /// What the process asked its executor to be.
    pub fn mode(&self) -> Mode {
        Mode::from_number(self.mode.load(Ordering::Relaxed).into()).unwrap_or_default()
    }

    /// What a claim is worth now.
    pub fn worth(&self, claim: Priority) -> Priority {
        if self.exhausted.load(Ordering::Relaxed) {
            return EXHAUSTED;
        }
        let claim = claim.limited_to(self.ceiling());
        if LEAST_CLAIM.is_more_important_than(claim) { LEAST_CLAIM } else { claim }
    }

    /// Counts that a worker was let run because of the starvation bound.
    pub fn boosted(&self) {
        self.boosts.fetch_add(1, Ordering::Relaxed);
        counters::count(Counter::StarvationBoosts);
    }

    /// Ticks that were charged to it.
    pub fn charged(&self) -> u64 {
        self.cpu.load(Ordering::Relaxed)
    }
}

/// Does what a kernel coroutine does for a process, and charges the process for its time.
pub fn charging<R>(process: &Arc<Process>, work: impl FnOnce() -> R) -> R {
    let start = Machine::now();
    let result = work();
    let now = Machine::now();
    charge(process, now.saturating_sub(start), now);
    result
}

/// Charges a process for time that one of its workers has used.
///
/// Nobody runs for much longer than a slice without being charged: the timer interrupts. If very much more time has passed,
/// the whole machine stood still meanwhile (under a hypervisor, or an emulator without a processor). Who happened to run then
/// pays for one period at most, and is not behind everybody else for many.
pub fn charge(process: &Arc<Process>, ticks: u64, now: u64) {
    let standing = &process.standing;
    // Relaxed: a sum that is only read.
    standing.cpu.fetch_add(ticks, Ordering::Relaxed);
    if standing.budget.charge(ticks.min(time::ticks_at_ns(DEFAULT_PERIOD_NS)), now)
        && !standing.exhausted.load(Ordering::Relaxed)
    {
        exhaust(process);
    }
}

/// Processes whose budget is used up.
static PENALTY_BENCH: Mutex<Vec<Arc<Process>>> = Mutex::new(Vec::new());

#[cold]
fn exhaust(process: &Arc<Process>) {
    {
        let mut bench = PENALTY_BENCH.lock();
        // Without memory to remember it by it could not be forgiven; it will be charged again.
        if bench.try_reserve(1).is_err() || process.standing.exhausted.swap(true, Ordering::Relaxed) {
            return;
        }
        bench.push(process.clone());
    }
    process.standing.times_exhausted.fetch_add(1, Ordering::Relaxed);
    counters::count(Counter::BudgetsExhausted);
    process.order_workers_anew();
    wake_keeper();
}

/// Forgets a process that has ended.
pub fn forget(process: &Arc<Process>) {
    if process.standing.exhausted.load(Ordering::Relaxed) {
        let found = {
            let mut bench = PENALTY_BENCH.lock();
            let place = bench.iter().position(|other| Arc::ptr_eq(other, process));
            place.map(|place| bench.swap_remove(place))
        };
        drop(found);
    }
}

/// Lets those go whose budget has been refilled; gives when the next one will be.
fn forgive(now: u64) -> u64 {
    loop {
        let mut next = u64::MAX;
        let forgiven = {
            let mut bench = PENALTY_BENCH.lock();
            let mut found = None;
            for (index, process) in bench.iter().enumerate() {
                let at = process.standing.budget.refilled_at(now);
                if at <= now || process.has_ended() {
                    found = Some(index);
                    break;
                }
                next = next.min(at);
            }
            found.map(|index| bench.swap_remove(index))
        };
        let Some(process) = forgiven else { return next };
        process.standing.exhausted.store(false, Ordering::Relaxed);
        process.order_workers_anew();
    }
}

// ---- the keeper ----

static BOUND_NS: AtomicU64 = AtomicU64::new(DEFAULT_BOUND_NS);
static DEFAULT_PERCENT: AtomicU64 = AtomicU64::new(DEFAULT_BUDGET_PERCENT);
static KEEPER: Mutex<Option<Waker>> = Mutex::new(None);

fn wake_keeper() {
    let keeper = KEEPER.lock().take();
    if let Some(keeper) = keeper {
        keeper.wake();
    }
}

/// Reads the boot command line and starts the keeper.
pub fn start(option: impl Fn(&str) -> Option<&'static str>) -> Result<(), &'static str> {
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
    let reservation = time::Reservation::new().map_err(|_| "there is no memory for the scheduling keeper's alarm")?;
    executor::spawn(Priority::HIGHEST, keep(reservation));
    Ok(())
}

/// The keeper: refills budgets, and sees to it that whoever is ready runs within the starvation bound.
async fn keep(reservation: time::Reservation) {
    let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let mut next_look = 0;
    let mut ready_before = 0;
    loop {
        // Before the look at what there is to do: who adds to that afterwards ends the sleep.
        *KEEPER.lock() = Some(waker.clone());
        let now = Machine::now();
        let mut deadline = forgive(now);
        match BOUND_NS.load(Ordering::Relaxed) {
            0 => ready_before = 0,
            bound => {
                if now >= next_look {
                    let ready = executor::waiting();
                    // Whoever has waited since the last look was ready then, at the same priority; but for calls that
                    // their process's finisher has not come to.
                    let some_are_unseen = input::some_may_starve_unseen();
                    if ready & ready_before != 0 || some_are_unseen {
                        look_at_everybody().await;
                    }
                    ready_before = ready;
                    next_look = Machine::now() + time::ticks_at_ns(bound) / 2;
                }
                deadline = deadline.min(next_look);
            }
        }
        sleep_until(&reservation, deadline).await;
    }
}

/// Waits for a time (all ones: for ever), or until somebody wakes the calling coroutine.
///
/// # Cancellation
/// Dropping it leaves an alarm behind that wakes for nothing. The keeper never does.
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

async fn look_at_everybody() {
    let mut id = 0;
    let mut count = 0;
    while let Some(process) = process::next_after(id) {
        id = process.id;
        process.look_for_the_starving();
        count += 1;
        if count % PROCESSES_AT_A_TIME == 0 {
            executor::yield_now().await;
        }
    }
}

// ---- modes ----

static STRICTNESS_MATTERS: AtomicBool = AtomicBool::new(false);

/// Whether somebody may look at the global bitmap before each poll, so that it must be right at each return to user mode.
#[inline(always)]
pub fn strictness_matters() -> bool {
    STRICTNESS_MATTERS.load(Ordering::Relaxed)
}

fn set_system_mode(mode: SystemMode) {
    if mode == SystemMode::Strict {
        STRICTNESS_MATTERS.store(true, Ordering::Relaxed);
    }
    shared::publish_mode(mode);
    let mut id = 0;
    while let Some(process) = process::next_after(id) {
        id = process.id;
        process.interrupt_all_workers();
    }
}

// ---- calls ----

/// `EPERM` unless the process has the privilege.
pub fn require_privilege(process: &Process) -> Result<(), Errno> {
    if process.standing.privileged.load(Ordering::Relaxed) { Ok(()) } else { Err(Errno::EPERM) }
}

/// The process that a call means: 0 is the caller.
fn meant(caller: &Arc<Process>, id: u32) -> Result<Arc<Process>, Errno> {
    if id == 0 || id == caller.id { Ok(caller.clone()) } else { process::find(id).ok_or(Errno::ESRCH) }
}

/// The `get_scheduling` call.
pub fn get(caller: &Arc<Process>, id: u32, buffer: UserBuffer) -> Result<usize, Errno> {
    let process = meant(caller, id)?;
    let words = describe(&process).words();
    let mut bytes = [0; size_of::<Scheduling>()];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    caller.copy_out(buffer.address(), &bytes[..bytes.len().min(buffer.len())])?;
    Ok(bytes.len())
}

/// How a process is scheduled now.
pub fn describe(process: &Process) -> Scheduling {
    let standing = &process.standing;
    let limit = {
        let mut limit = standing.budget.limit.lock();
        limit.advance(Machine::now());
        *limit
    };
    Scheduling {
        ceiling: standing.ceiling().number().into(),
        priority: process.claimed_priority().number().into(),
        mode: standing.mode() as u64,
        privilege: standing.privileged.load(Ordering::Relaxed).into(),
        budget_ns: if limit.ticks == u64::MAX { scheduling::NO_LIMIT } else { time::ns_at_ticks(limit.ticks) },
        period_ns: time::ns_at_ticks(limit.period),
        used_ns: time::ns_at_ticks(limit.used),
        cpu_ns: time::ns_at_ticks(process.cpu_ticks()),
        exhausted: standing.times_exhausted.load(Ordering::Relaxed).into(),
        boosts: standing.boosts.load(Ordering::Relaxed).into(),
    }
}

/// The `set_scheduling` call.
pub fn set(caller: &Arc<Process>, id: u32, attribute: u32, value: u64, period_ns: u64) -> Result<(), Errno> {
    let process = meant(caller, id)?;
    let privileged = caller.standing.privileged.load(Ordering::Relaxed);
    let is_own = Arc::ptr_eq(&process, caller);
    if !privileged && !is_own && process.parent() != caller.id {
        return Err(Errno::EPERM);
    }
    let standing = &process.standing;
    match attribute {
        scheduling::CEILING => {
            let ceiling = u8::try_from(value).ok().and_then(Priority::new).ok_or(Errno::EINVAL)?;
            // Nobody gives more than it has.
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
            {
                let mut limit = standing.budget.limit.lock();
                // A smaller share of the time; compared as products, which 128 bits hold.
                let is_less =
                    u128::from(ticks) * u128::from(limit.period) <= u128::from(limit.ticks) * u128::from(period);
                if !privileged && (ticks == u64::MAX || !is_less) {
                    return Err(Errno::EPERM);
                }
                *limit = Limit { ticks, period, used: 0, period_start: Machine::now() };
            }
            standing.budget.covers_children.store(true, Ordering::Relaxed);
            wake_keeper();
        }
        scheduling::MODE => {
            let mode = Mode::from_number(value).ok_or(Errno::EINVAL)?;
            if mode == Mode::Strict {
                STRICTNESS_MATTERS.store(true, Ordering::Relaxed);
            }
            standing.mode.store(mode as u8, Ordering::Relaxed);
            process.shared.tell_mode(mode);
            process.interrupt_all_workers();
        }
        scheduling::PRIVILEGE => {
            if value > 1 {
                return Err(Errno::EINVAL);
            }
            if value == 1 && !privileged {
                return Err(Errno::EPERM);
            }
            standing.privileged.store(value == 1, Ordering::Relaxed);
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(())
}

/// The `set_system_scheduling` call.
pub fn set_system(caller: &Process, attribute: u32, value: u64) -> Result<(), Errno> {
    if !matches!(attribute, system_scheduling::MODE | system_scheduling::STARVATION_BOUND) {
        return Err(Errno::EINVAL);
    }
    require_privilege(caller)?;
    if attribute == system_scheduling::MODE {
        set_system_mode(SystemMode::from_number(value).ok_or(Errno::EINVAL)?);
    } else {
        if value != 0 && value < system_scheduling::SHORTEST_BOUND_NS {
            return Err(Errno::EINVAL);
        }
        BOUND_NS.store(value, Ordering::Relaxed);
        wake_keeper();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn budget(ticks: u64, period: u64, above: Option<Arc<Budget>>) -> Budget {
        let limit = Limit { ticks, period, used: 0, period_start: 0 };
        let depth = above.as_ref().map_or(0, |above| above.depth + 1);
        Budget { limit: Mutex::new(limit), covers_children: AtomicBool::new(true), above, depth }
    }

    #[test]
    fn a_budget_is_used_up_and_refilled() {
        let budget = budget(30, 100, None);
        assert!(!budget.charge(29, 29));
        assert!(budget.charge(11, 40), "an overrun is possible");
        assert!(budget.charge(50, 90), "what is taken behind everybody else is free");
        assert_eq!(budget.refilled_at(90), 100);
        // Ten were too many.
        assert!(!budget.charge(19, 119));
        assert!(budget.charge(1, 120));
        assert_eq!(budget.refilled_at(120), 200);
        assert_eq!(budget.refilled_at(200), 200);
        assert!(!budget.charge(29, 1000));
    }

    #[test]
    fn a_budget_above_covers_all_below() {
        let above = Arc::new(budget(40, 100, None));
        let one = budget(u64::MAX, 100, Some(above.clone()));
        let other = budget(30, 100, Some(above));
        assert!(!one.charge(20, 20));
        assert!(!other.charge(15, 40));
        assert!(one.charge(5, 50));
        assert!(other.charge(1, 55), "the common one is used up");
        assert_eq!(other.refilled_at(60), 100);
        assert!(!other.charge(1, 101));
    }

    #[test]
    fn what_a_claim_is_worth() {
        let standing = Standing::new(Priority::HIGHEST, Mode::Relaxed, true, Arc::new(budget(u64::MAX, 100, None)));
        let priority = |number| Priority::new(number).unwrap();
        assert_eq!(standing.worth(Priority::HIGHEST), Priority::HIGHEST);
        assert_eq!(standing.worth(Priority::LOWEST), LEAST_CLAIM);
        standing.ceiling.store(5, Ordering::Relaxed);
        assert_eq!(standing.worth(Priority::HIGHEST), priority(5));
        assert_eq!(standing.worth(priority(7)), priority(7));
        standing.exhausted.store(true, Ordering::Relaxed);
        assert_eq!(standing.worth(Priority::HIGHEST), EXHAUSTED);
        assert!(LEAST_CLAIM.is_more_important_than(EXHAUSTED));
    }

    proptest! {
        /// A process that takes what it can while it may never gets more than its share, but for one overrun.
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
                budget.charge(run, now);
                prop_assert!(taken <= (now / 100 + 1) * ticks + 20, "{taken} of {now}");
                now += pause;
            }
        }

        #[test]
        fn refilling_is_neither_early_nor_late(ticks in 1u64..90, used in 0u64..1000, now in 0u64..500) {
            let budget = budget(ticks, 100, None);
            budget.limit.lock().used = used;
            let at = budget.refilled_at(now);
            prop_assert!(at >= now);
            prop_assert_eq!(budget.refilled_at(at), at);
            if at > now {
                let again = Budget { limit: Mutex::new(Limit { ticks, period: 100, used, period_start: 0 }), ..budget };
                prop_assert!(again.refilled_at(at - 1) > at - 1);
            }
        }
    }
}
