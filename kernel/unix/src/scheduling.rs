//! Limits of scheduling: ceilings, budgets, the starvation bound, and the mode that executors follow.
//!
//! The order of priorities is the scheduler's. The priority that a process publishes in its process page is only a
//! claim, and this module limits the effective priority of a claim:
//!
//! * **Ceiling.** No claim of a process counts for more. Children inherit it. And no claim counts for as much as the
//!   most important priority of the kernel's executor: a claim counts for the priority behind its own ([`standing`]).
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
//!   priority that no claim has, and wait in one queue there. (Linking them in front of those with the best claim would
//!   do for one of them, but the last one that was linked would be the first to run, and processes that starve again
//!   and again would hold back one that has waited longer.) Nothing of an exhausted process is preferred: its turn
//!   comes when its budget is refilled. The watchdog looks at all processes only if something was ready at one priority
//!   at both looks, which is rare on a machine that keeps up; it looks in short steps, and charges its work to the
//!   process that it looks at.
//!
//! # EVERY-TICK
//!
//! Every tick that a hart spends for a process is charged to that process, and none is spent at a priority above
//! [`EXHAUSTED`] once the budget is used up, but for the rest of the poll in which that is noticed. Two things ensure
//! this. A coroutine of the kernel either [works for an owner](executor::spawn_for), and then each of its polls is
//! charged as a whole, with the way there ([`payers`]), or is one of the kernel's own few; there is no third way to
//! start one. And a poll for a process without budget lowers its coroutine instead of going on. So exhausting a budget
//! costs the same however many threads and calls the process has: each is lowered at its next poll. The watchdog raises
//! them again, in steps that are charged as well.
//!
//! The network's coroutine is one of the kernel's own, and charges its work for a frame or a connection to the process
//! that waits for it ([`network::stack`](crate::network::stack)). The coroutine that wakes the rest of thousands of
//! waiters ([`deferred_wakes`]) charges the process that has woken them. No process is charged for looks that find a
//! frame's reader, frames without a reader, and the watchdog's choice among processes.
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

pub(crate) mod attributes;
pub(crate) mod deferred_wakes;
pub(crate) mod executor;
pub(crate) mod payers;
pub(crate) mod standing;
pub(crate) mod steps;
pub(crate) mod stretch;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use core::task::Poll;

use abi_queue::{Priority, SystemMode};
use abi_unix::Counter;
use coroutine::State;
use hal_api::Machine as _;
use platform::{Machine, println};
use spin::{Mutex, Once};

use crate::asynchronous::input;
use crate::observing::counters;
use crate::process::{Look, Member, Process, shared, table};
use crate::scheduling::executor::{Cid, EXHAUSTED, Owner};
use crate::scheduling::standing::{DEFAULT_PERCENT, DEFAULT_PERIOD_NS, WATCHDOG, wake_watchdog};
use crate::time;

/// Starvation bound, unless the boot command line sets another.
pub(crate) const DEFAULT_BOUND_NS: u64 = 1_000_000_000;
/// Number of processes after which the watchdog looks for interrupts.
const PROCESSES_AT_A_TIME: usize = 64;
/// Number of workers, threads and calls of one process after which it does so, too.
const MEMBERS_AT_A_TIME: usize = 128;
/// Number of these steps after which it lets others run. Not after each: its next turn may be a slice of each preferred
/// member away.
const STEPS_AT_A_TIME: usize = 32;
/// Time that the watchdog rests for each process that it has found exhausted.
const LOOK_AT_ONE_NS: u64 = 10_000;

impl Owner for Arc<Process> {
    fn number(&self) -> u32 {
        self.id
    }

    #[inline(always)]
    fn has_no_claim(&self) -> bool {
        has_no_claim(self)
    }

    fn ends(&self) {
        let now = Machine::now();
        charge(self, payers::take(now), now);
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

/// Does work for a process in a coroutine of the kernel's own, or in another time that is not its own, and charges the
/// process for it.
pub(crate) fn charging<R>(process: &Arc<Process>, work: impl FnOnce() -> R) -> R {
    payers::work_for(process.id);
    charging_for_work_alone(process, work)
}

/// Charges a process for what a coroutine of the kernel's own has done since a moment of its poll, but for what others
/// pay for; returns the present moment.
pub(crate) fn charge_since(process: &Arc<Process>, since: payers::Since) -> payers::Since {
    payers::work_for(process.id);
    let now = Machine::now();
    charge_apart(process, since.ticks(now), now);
    payers::Since::at(now)
}

/// Does as [`charging`], for work that the process has not caused: it does not pay for the ways of the coroutine.
fn charging_for_work_alone<R>(process: &Arc<Process>, work: impl FnOnce() -> R) -> R {
    let start = Machine::now();
    let result = work();
    let now = Machine::now();
    charge_apart(process, now.saturating_sub(start), now);
    result
}

/// Charges a process for a part of a poll, which is not charged to the owner of the poll then.
fn charge_apart(process: &Arc<Process>, ticks: u64, now: u64) {
    charge(process, ticks, now);
    payers::leave_out(ticks);
}

/// Charges a process by its number; returns `false` if there is no such process.
fn charge_by_number(payer: u32, ticks: u64) -> bool {
    let process = table::find(payer);
    if let Some(process) = &process {
        charge(process, ticks, Machine::now());
    }
    process.is_some()
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
    // Release: a reader of the sum finds the worker, whose time this was, without it.
    standing.cpu.fetch_add(ticks, Ordering::Release);
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

/// Moves a process's frames to where their readers' importance puts them: the network's part of a refill.
static RESTORE_FRAMES: Once<fn(u32)> = Once::new();

/// Registers the network's part of a refill. Called once.
pub(crate) fn register_frames(restore: fn(u32)) {
    RESTORE_FRAMES.call_once(|| restore);
}

fn restore_frames(process: u32) {
    if let Some(restore) = RESTORE_FRAMES.get() {
        restore(process);
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
            // Pairs with the fence of the caller that puts frames behind: it sees that the budget is refilled, or its
            // frames are seen here.
            fence(Ordering::SeqCst);
            if process.standing.frames_behind.swap(false, Ordering::Relaxed) {
                charging(&process, || restore_frames(process.id));
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
/// Sets the starvation bound in nanoseconds; 0 for none.
pub(crate) fn set_bound_ns(value: u64) {
    BOUND_NS.store(value, Ordering::Relaxed);
    wake_watchdog();
}

/// Returns the starvation bound in ticks; `None` if there is none.
pub(crate) fn bound_ticks() -> Option<u64> {
    match BOUND_NS.load(Ordering::Relaxed) {
        0 => None,
        bound => Some(time::ticks_at_ns(bound)),
    }
}

/// Reads the boot command line and starts the watchdog.
pub(crate) fn start(option: impl Fn(&str) -> Option<&'static str>) -> Result<(), &'static str> {
    payers::register_charge(charge_by_number);
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
                    deferred_wakes::boost();
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
pub(crate) async fn sleep_until(reservation: &time::Reservation, deadline: u64) {
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
    let (mut walk, mut pace) = (table::Walk::above(0), Pace::default());
    let mut count = 0;
    while let Some(process) = walk.next_at_pace(&mut pace).await {
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
    for Range { start, end } in [begin..Member::END, Member::FIRST..begin] {
        let mut next = start;
        while next < end {
            match charging_for_work_alone(process, || process.look_for_the_starving(next..end, MEMBERS_AT_A_TIME)) {
                Look::Found(cid, next) => {
                    standing.preferred.store(cid.raw(), Ordering::Relaxed);
                    standing.next_look.store(next.to_word(), Ordering::Relaxed);
                    standing.boosted();
                    return;
                }
                Look::More(member) => next = member,
                Look::End => break,
            }
            if has_no_claim(process) {
                return;
            }
            pace.step().await;
        }
    }
}

// ---- modes ----

fn set_system_mode(mode: SystemMode) {
    if mode == SystemMode::Strict {
        stretch::watch_returns();
    }
    shared::publish_mode(mode);
    let mut id = 0;
    while let Some(process) = table::next_after(id) {
        id = process.id;
        process.interrupt_all_workers();
    }
}

#[cfg(test)]
mod tests {
    use core::pin::pin;
    use core::task::{Context, Waker};

    use super::*;
    use crate::testing::{run, simulation};

    #[test]
    fn work_for_a_process_is_charged_to_it() {
        run(|program| {
            let process = program.process();
            let before = process.standing.charged();
            let answer = charging(&process, || {
                simulation().advance(1000);
                7
            });
            assert_eq!(answer, 7);
            assert!(process.standing.charged() - before >= 1000);
            assert!(!has_no_claim(&process), "far from the end of its budget");
        });
    }

    #[test]
    fn a_member_starves_that_two_looks_find_without_a_turn() {
        // The members with which the look begins: from any of them it goes around once.
        for begin in [0, 1, 2, 1 << 32, (1 << 32) + 7] {
            run(move |program| {
                program.add_worker(|program| program.sleep_ns(1)).unwrap();
                let process = program.process();
                process.standing.next_look.store(begin, Ordering::Relaxed);
                let preferred = || {
                    let mut pace = Pace::default();
                    let look = pin!(look_for_one_that_starves(&process, &mut pace));
                    assert!(look.poll(&mut Context::from_waker(Waker::noop())).is_ready());
                    Cid::from_raw(process.standing.preferred.load(Ordering::Relaxed))
                };
                let nothing = preferred();
                assert_eq!(executor::state(nothing), None, "one look from {begin} shows nothing");
                let cid = preferred();
                assert_eq!(
                    (executor::state(cid), executor::priority(cid)),
                    (Some(State::Ready), Some(Priority::HIGHEST))
                );
            });
        }
    }
}
