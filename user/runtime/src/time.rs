//! Time: a clock without system calls, sleeping, intervals, time limits.
//!
//! The clock is the `time` register of the hart, which user mode may read, and the factors on the kernel's global page.
//! Sleeping coroutines are in one ordered map of the process. For the earliest deadline there is one asynchronous sleep
//! in the kernel, the *alarm*, whose completion arrives like every other. So sleeping costs a system call only when the
//! earliest deadline changes, however many coroutines sleep, and works also while all workers are busy.
//!
//! ```no_run
//! use cops::time::{Duration, Instant};
//!
//! # async fn work() {}
//! # async fn example() {
//! let begin = Instant::now();
//! cops::sleep(Duration::from_millis(20)).await;
//! if cops::timeout(Duration::from_secs(1), work()).await.is_err() {
//!     cops::println!("not done after {:?}", begin.elapsed());
//! }
//! let mut interval = cops::interval(Duration::from_secs(5));
//! loop {
//!     interval.tick().await;
//!     work().await;
//! }
//! # }
//! ```

use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};

use abi_queue::GlobalPage;
use abi_queue::pages::ticks_to_ns;
use alloc::collections::BTreeMap;

pub use core::time::Duration;

use crate::lock::{Lock, Section};

/// A point in time since the machine started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant {
    ns: u64,
}

impl Instant {
    /// A moment that never comes.
    pub const NEVER: Instant = Instant { ns: u64::MAX };

    /// Returns the current time.
    #[inline]
    pub fn now() -> Instant {
        Instant { ns: now_ns() }
    }

    /// Converts from nanoseconds since the machine started.
    pub const fn from_ns(ns: u64) -> Instant {
        Instant { ns }
    }

    /// Returns nanoseconds since the machine started.
    pub const fn as_ns(self) -> u64 {
        self.ns
    }

    /// Returns the time from this instant to now; zero if the instant is in the future.
    pub fn elapsed(self) -> Duration {
        Instant::now().since(self)
    }

    /// Returns the time from `earlier` to this instant; zero if `earlier` is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.ns.saturating_sub(earlier.ns))
    }
}

impl core::ops::Add<Duration> for Instant {
    type Output = Instant;

    /// Returns the instant that is later by a duration; [`Instant::NEVER`] on overflow.
    fn add(self, duration: Duration) -> Instant {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Instant { ns: self.ns.saturating_add(ns) }
    }
}

static GLOBAL_PAGE: AtomicPtr<GlobalPage> = AtomicPtr::new(core::ptr::null_mut());
/// Nanoseconds of a tick if that is a whole number, else 0.
static TICK_NS: AtomicU64 = AtomicU64::new(0);

/// Sets the address of the global page.
///
/// # Safety
///
/// It must be the kernel's global page, and stay mapped.
pub(crate) unsafe fn set_global_page(page: *mut GlobalPage) {
    GLOBAL_PAGE.store(page, Ordering::Relaxed);
    if let Some(page) = global_page() {
        let ticks = page.ticks_per_second.load(Ordering::Relaxed);
        if ticks != 0 && 1_000_000_000u64.is_multiple_of(ticks) {
            TICK_NS.store(1_000_000_000 / ticks, Ordering::Relaxed);
        }
    }
}

/// Returns the kernel's global page, once its address is set.
pub fn global_page() -> Option<&'static GlobalPage> {
    // SAFETY: it stays mapped by the promise of `set_global_page`'s caller; every word of it is atomic.
    unsafe { GLOBAL_PAGE.load(Ordering::Relaxed).as_ref() }
}

/// Returns the nanoseconds of a tick, rounded.
pub(crate) fn tick_ns() -> u64 {
    match TICK_NS.load(Ordering::Relaxed) {
        0 => {
            let rate = global_page().map_or(0, |page| page.ticks_per_second.load(Ordering::Relaxed));
            1_000_000_000u64.checked_div(rate).unwrap_or(1)
        }
        ns => ns,
    }
}

/// Reads the `time` register.
#[cfg(on_cops)]
#[inline(always)]
pub fn ticks() -> u64 {
    let ticks;
    // SAFETY: reads a counter that user mode may read.
    unsafe { core::arch::asm!("rdtime {}", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
    ticks
}

/// Returns nanoseconds since the machine started.
#[cfg(on_cops)]
#[inline]
pub fn now_ns() -> u64 {
    match TICK_NS.load(Ordering::Relaxed) {
        0 => {
            let rate = global_page().map_or(0, |page| page.ticks_per_second.load(Ordering::Relaxed));
            if rate == 0 { 0 } else { ticks_to_ns(ticks(), rate) }
        }
        ns => ticks().wrapping_mul(ns),
    }
}

/// Returns nanoseconds since the first call.
#[cfg(not(on_cops))]
pub fn now_ns() -> u64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let _ = ticks_to_ns;
    START.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64
}

/// Returns nanoseconds since 1970.
pub fn now_since_epoch_ns() -> u64 {
    global_page().map_or(0, |page| page.epoch_ns.load(Ordering::Relaxed)) + now_ns()
}

/// The sleeping coroutines, by deadline; the second number tells equal deadlines apart.
struct Timers {
    waiting: BTreeMap<(u64, u64), Waker>,
    next: u64,
    /// Number of alarms set so far.
    alarms: u32,
}

static TIMERS: Lock<Timers> = Lock::new(Timers { waiting: BTreeMap::new(), next: 0, alarms: 0 });
/// Earliest deadline in nanoseconds, `u64::MAX` if there is none. Written under the lock of `TIMERS`.
static EARLIEST: AtomicU64 = AtomicU64::new(u64::MAX);

/// Value of [`EARLIEST`] from the moment at which the handler of interrupts has taken the alarm's completion: the next
/// look of any worker is due, and sets the next alarm.
const AT_ONCE: u64 = 0;

impl Timers {
    fn earliest(&self) -> u64 {
        self.waiting.keys().next().map_or(u64::MAX, |(deadline, _)| *deadline)
    }

    /// Publishes the earliest deadline. It may replace [`AT_ONCE`], so [`Timers::alarm_for`] comes next.
    fn publish_earliest(&self) -> u64 {
        let earliest = self.earliest();
        // Relaxed: it is a hint when to look; the map is behind the lock.
        EARLIEST.store(earliest, Ordering::Relaxed);
        earliest
    }
}

/// Returns the earliest deadline, in nanoseconds; `u64::MAX` if no coroutine sleeps.
#[inline]
pub(crate) fn earliest_deadline_ns() -> u64 {
    EARLIEST.load(Ordering::Relaxed)
}

/// Returns whether a deadline has come whose coroutine was not woken yet.
pub(crate) fn is_due() -> bool {
    let earliest = earliest_deadline_ns();
    earliest != u64::MAX && earliest <= now_ns()
}

/// Wakes every coroutine whose deadline has come, and returns whether there was one. Cheap if there is none.
#[inline]
pub(crate) fn expire() -> bool {
    is_due() && expire_now()
}

#[cold]
#[inline(never)]
fn expire_now() -> bool {
    let mut any = false;
    loop {
        let now = now_ns();
        let mut due: [Option<Waker>; 16] = [const { None }; 16];
        let section = Section::begin();
        let mut timers = TIMERS.lock();
        let mut count = 0;
        while count < due.len()
            && let Some(entry) = timers.waiting.first_entry()
            && entry.key().0 <= now
        {
            due[count] = Some(entry.remove());
            count += 1;
        }
        let earliest = timers.publish_earliest();
        let alarm = timers.alarm_for(earliest);
        drop(timers);
        set_alarm(alarm);
        drop(section);
        // Without the lock: a waker may run anything.
        any |= count > 0;
        due.into_iter().flatten().for_each(Waker::wake);
        if count < 16 {
            return any;
        }
    }
}

/// Returns how long a worker without work may sleep in the kernel.
pub(crate) fn longest_sleep_ns() -> u64 {
    let earliest = earliest_deadline_ns();
    if earliest == u64::MAX || ALARM.load(Ordering::Relaxed) <= earliest {
        unix::worker::NO_LIMIT
    } else {
        earliest.saturating_sub(now_ns())
    }
}

/// The lower half of the token of an alarm's call: no record has this index.
const ALARM_INDEX: u64 = 0xffff_ffff;
/// Deadline of the alarm that is in the kernel; `u64::MAX` if there is none. Written under the lock of `TIMERS`.
static ALARM: AtomicU64 = AtomicU64::new(u64::MAX);

/// Token of the alarm decided on last. Written under the lock of `TIMERS`.
static LATEST: AtomicU64 = AtomicU64::new(0);

/// A change of the alarm, decided under the lock; the kernel is called without it.
struct NewAlarm {
    deadline_ns: u64,
    token: u64,
    /// Token of the alarm that it replaces.
    cancelled: Option<u64>,
}

impl Timers {
    /// Decides whether the kernel must be given a new alarm at this moment.
    fn alarm_for(&mut self, earliest: u64) -> Option<NewAlarm> {
        let alarm = ALARM.load(Ordering::Relaxed);
        if alarm != u64::MAX && alarm <= now_ns() {
            // It has come, or is just coming.
            ALARM.store(u64::MAX, Ordering::Relaxed);
        }
        let alarm = ALARM.load(Ordering::Relaxed);
        if earliest >= alarm {
            return None;
        }
        ALARM.store(earliest, Ordering::Relaxed);
        let cancelled = (alarm != u64::MAX).then_some(alarm_token(self.alarms));
        self.alarms = self.alarms.wrapping_add(1);
        // Relaxed: any code that compares with it, or cancels, has made a call since; the kernel orders them.
        LATEST.store(alarm_token(self.alarms), Ordering::Relaxed);
        Some(NewAlarm { deadline_ns: earliest, token: alarm_token(self.alarms), cancelled })
    }

    /// Records that the kernel has not accepted this alarm, unless a later one has replaced it, which the kernel may
    /// have.
    fn forget_alarm(&mut self, token: u64) {
        if alarm_token(self.alarms) == token {
            ALARM.store(u64::MAX, Ordering::Relaxed);
        }
    }
}

const fn alarm_token(number: u32) -> u64 {
    (number as u64) << 32 | ALARM_INDEX
}

/// Returns whether a completion is that of an alarm.
#[inline]
pub(crate) fn is_alarm(token: u64) -> bool {
    token & ALARM_INDEX == ALARM_INDEX
}

/// Gives the kernel the new alarm: one asynchronous sleep to the earliest deadline, so that its completion comes even
/// while the workers are busy. While they are idle, a sleep in the kernel of at most that length would do; but which of
/// the two the next moment will be is not known.
fn set_alarm(alarm: Option<NewAlarm>) {
    let Some(alarm) = alarm else { return };
    if let Some(token) = alarm.cancelled {
        let _ = unix::worker::cancel(token);
    }
    let duration = abi_unix::types::TimeSpec::from_ns(alarm.deadline_ns.saturating_sub(now_ns()).max(1));
    let arguments = [&raw const duration as usize, 0, 0, 0, 0, 0];
    // SAFETY: the kernel reads the duration before it answers, and writes nothing.
    let result = unsafe {
        unix::syscall_asynchronous(
            abi_unix::SystemCall::Sleep as usize,
            arguments,
            0,
            abi_queue::Priority::HIGHEST.number(),
            alarm.token,
        )
    };
    if result != abi_unix::WILL_BE_POSTED {
        // Over already, or refused: workers look at the clock before they sleep, and sleep no longer than to the
        // deadline. This one looks at once, since it may have something else to run that never pauses.
        TIMERS.lock().forget_alarm(alarm.token);
        crate::interrupt::raise_attention();
    } else if LATEST.load(Ordering::Relaxed) != alarm.token {
        // Another worker has replaced this alarm since, and may have cancelled it before the kernel had it: it would
        // stay in flight until its deadline, which may be far away.
        let _ = unix::worker::cancel(alarm.token);
    }
}

/// Handles the alarm's completion.
#[cold]
pub(crate) fn alarm_came() {
    // Also if nothing is due, because its sleeper was dropped: the next alarm has to be set.
    expire_now();
}

/// Notes the alarm's completion in the handler of interrupts, which must not take the lock: the calling worker handles
/// it when its poll has ended, unless another one looks at the clock before.
#[cold]
pub(crate) fn alarm_came_in_handler() {
    EARLIEST.store(AT_ONCE, Ordering::Relaxed);
    crate::interrupt::raise_attention();
}

/// Future of [`sleep`] and [`sleep_until`].
#[derive(Debug)]
#[must_use = "nothing waits unless this is awaited"]
#[doc(alias("Timer", "Delay"))]
pub struct Sleep {
    deadline_ns: u64,
    /// Its number among the timers with this deadline, while it is in the map.
    ticket: Option<u64>,
}

impl Sleep {
    /// Returns the deadline.
    pub const fn deadline(&self) -> Instant {
        Instant { ns: self.deadline_ns }
    }

    fn forget(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let mut timers = TIMERS.lock();
            // The entry is gone if the deadline has passed.
            if timers.waiting.remove(&(self.deadline_ns, ticket)).is_some() {
                // In one step, so that it does not replace `AT_ONCE`.
                let (own, earliest) = (self.deadline_ns, timers.earliest());
                let _ = EARLIEST.compare_exchange(own, earliest, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.deadline_ns <= now_ns() {
            self.forget();
            return Poll::Ready(());
        }
        // In a section to the end: other workers rely on an alarm that was decided on, so no preemption before it is
        // set.
        let _section = Section::begin();
        let mut timers = TIMERS.lock();
        let ticket = self.ticket.unwrap_or_else(|| {
            timers.next += 1;
            timers.next
        });
        self.ticket = Some(ticket);
        match timers.waiting.get_mut(&(self.deadline_ns, ticket)) {
            Some(waker) => waker.clone_from(context.waker()),
            None => {
                timers.waiting.insert((self.deadline_ns, ticket), context.waker().clone());
            }
        }
        let earliest = timers.publish_earliest();
        let alarm = timers.alarm_for(earliest);
        drop(timers);
        set_alarm(alarm);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.forget();
    }
}

/// Waits for a duration.
///
/// # Cancellation
///
/// Strict. Dropping it removes the deadline; nothing else happens. (A second call counts its duration anew.)
pub fn sleep(duration: Duration) -> Sleep {
    sleep_until(Instant::now() + duration)
}

/// Waits until an instant; returns at once if it has passed.
///
/// # Cancellation
///
/// Strict. Dropping it removes the deadline; nothing else happens.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline_ns: deadline.ns, ticket: None }
}

/// The error of [`timeout`]: the time was over before the future was ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl core::fmt::Display for Elapsed {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str("the time is over")
    }
}

impl core::error::Error for Elapsed {}

/// Waits for a future, but no longer than a duration. If both are due the future wins.
///
/// # Errors
///
/// [`Elapsed`]; the future has been dropped then. Pass a pinned reference to keep it.
///
/// # Cancellation
///
/// Weak. Drops the future.
#[doc(alias("with_timeout", "wait_for"))]
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    let sleep = core::pin::pin!(sleep(duration));
    let future = core::pin::pin!(future);
    match crate::select::select(future, sleep).await {
        crate::select::Either::First(output) => Ok(output),
        crate::select::Either::Second(()) => Err(Elapsed),
    }
}

/// The behaviour of an [`Interval`] whose ticks were missed, because they were not awaited in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissedTickBehavior {
    /// Missed ticks come at once, one after the other.
    #[default]
    Burst,
    /// The missed tick comes at once, and the next one a period after that.
    Delay,
    /// The missed tick comes at once, and the next one at the next multiple of the period from the start.
    Skip,
}

impl MissedTickBehavior {
    /// Returns the instant of the tick after one that was due at `tick` and came at `now`.
    fn next(self, tick: Instant, now: Instant, period: Duration) -> Instant {
        let next = tick + period;
        if next > now {
            return next;
        }
        match self {
            MissedTickBehavior::Burst => next,
            MissedTickBehavior::Delay => now + period,
            MissedTickBehavior::Skip => {
                let period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
                let into_period = now.since(tick).as_nanos() as u64 % period_ns;
                now + Duration::from_nanos(period_ns - into_period)
            }
        }
    }
}

/// Ticks at regular instants. See [`interval`].
#[derive(Debug)]
pub struct Interval {
    next: Instant,
    period: Duration,
    missed: MissedTickBehavior,
}

impl Interval {
    /// Waits for the next tick and returns the instant for which it was planned. After missed ticks the behaviour that
    /// was chosen decides on the next.
    ///
    /// # Cancellation
    ///
    /// Strict. The tick is not lost: the next call waits for it.
    pub async fn tick(&mut self) -> Instant {
        self.until_next().await;
        self.ticked()
    }

    /// Returns the future of the next tick's moment.
    pub(crate) fn until_next(&self) -> Sleep {
        sleep_until(self.next)
    }

    /// Goes on to the next tick, and returns the one whose moment has come.
    pub(crate) fn ticked(&mut self) -> Instant {
        let tick = self.next;
        self.next = self.missed.next(tick, Instant::now(), self.period);
        tick
    }

    /// Chooses the behaviour after missed ticks; at first it is [`MissedTickBehavior::Burst`].
    pub fn set_missed_tick_behavior(&mut self, behavior: MissedTickBehavior) {
        self.missed = behavior;
    }

    /// Returns the behaviour after missed ticks.
    pub fn missed_tick_behavior(&self) -> MissedTickBehavior {
        self.missed
    }

    /// Returns the period.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Begins anew: the next tick comes a period from now.
    pub fn reset(&mut self) {
        self.next = Instant::now() + self.period;
    }
}

/// Makes an interval that ticks every `period`, the first time at once.
///
/// # Panics
///
/// If the period is zero.
#[doc(alias = "Ticker")]
pub fn interval(period: Duration) -> Interval {
    interval_at(Instant::now(), period)
}

/// Makes an interval that ticks every `period`, the first time at an instant.
///
/// # Panics
///
/// If the period is zero.
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    assert!(!period.is_zero(), "an interval needs a period");
    Interval { next: start, period, missed: MissedTickBehavior::Burst }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wakes::Wakes;
    use std::vec::Vec;

    /// Serialises tests that use the process's timers: these are one for all threads.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn an_alarm_that_is_refused_leaves_another_workers() {
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut timers = TIMERS.lock();
        let in_an_hour = now_ns() + 3_600_000_000_000;
        let first = timers.alarm_for(in_an_hour).unwrap();
        // Another worker has an earlier deadline, before the kernel has answered the first.
        let second = timers.alarm_for(in_an_hour / 2).unwrap();
        assert_eq!(second.cancelled, Some(first.token));
        timers.forget_alarm(first.token);
        assert_eq!(ALARM.load(Ordering::Relaxed), in_an_hour / 2);
        timers.forget_alarm(second.token);
        assert_eq!(ALARM.load(Ordering::Relaxed), u64::MAX);
    }

    #[test]
    fn sleeps_end_in_order_and_dropped_ones_are_forgotten() {
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (wakes, waker) = Wakes::counted();
        let mut context = Context::from_waker(&waker);
        let start = Instant::now();
        let mut sleeps: Vec<_> = (0..50u64).map(|n| sleep_until(start + Duration::from_millis(20 + n % 7))).collect();
        for sleep in &mut sleeps {
            assert!(Pin::new(&mut *sleep).poll(&mut context).is_pending());
            assert!(Pin::new(sleep).poll(&mut context).is_pending());
        }
        let mut forgotten = sleep_until(start + Duration::from_millis(1));
        assert!(Pin::new(&mut forgotten).poll(&mut context).is_pending());
        assert_eq!(earliest_deadline_ns(), forgotten.deadline_ns);
        drop(forgotten);
        assert_eq!(earliest_deadline_ns(), (start + Duration::from_millis(20)).ns);
        expire();
        assert_eq!(wakes.count(), 0);
        while start.elapsed() < Duration::from_millis(30) {
            std::thread::sleep(Duration::from_millis(1));
        }
        expire();
        assert_eq!(wakes.count(), 50);
        assert_eq!(earliest_deadline_ns(), u64::MAX);
        for sleep in &mut sleeps {
            assert!(Pin::new(sleep).poll(&mut context).is_ready());
        }
    }

    /// The handler of interrupts may take the alarm's completion at any point, also in the middle of a change.
    #[test]
    fn an_alarm_that_the_handler_has_taken_is_due_at_the_next_look() {
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (wakes, waker) = Wakes::counted();
        let mut context = Context::from_waker(&waker);
        let start = Instant::now();
        let [mut dropped, mut kept] = [1, 3_600_000].map(|ms| sleep_until(start + Duration::from_millis(ms)));
        assert!(Pin::new(&mut dropped).poll(&mut context).is_pending());
        assert!(Pin::new(&mut kept).poll(&mut context).is_pending());
        alarm_came_in_handler();
        assert!(is_due());
        drop(dropped);
        assert!(is_due(), "forgetting another deadline does not hide that the alarm has come");
        assert_eq!(longest_sleep_ns(), 0);
        // Nothing has to be woken; the clock is that of the deadlines again.
        assert!(!expire());
        assert_eq!((wakes.count(), earliest_deadline_ns()), (0, kept.deadline_ns));
        drop(kept);
        assert_eq!(earliest_deadline_ns(), u64::MAX);
    }

    #[test]
    fn each_behaviour_has_its_own_tick_after_missed_ones() {
        use MissedTickBehavior::{Burst, Delay, Skip};
        let (at, period) = (Instant::from_ns, Duration::from_nanos(10));
        // Came in time, at the last moment, and too late for two and a half ticks.
        for (now, expected) in [(100, [110, 110, 110]), (109, [110, 110, 110]), (125, [110, 135, 130])] {
            assert_eq!([Burst, Delay, Skip].map(|behavior| behavior.next(at(100), at(now), period)), expected.map(at));
        }
        // Exactly at a later tick, that one has passed.
        assert_eq!(Skip.next(at(100), at(120), period), at(130));
        assert_eq!(Skip.next(at(0), at(5), Duration::MAX), Instant::NEVER);
        let mut ticks = interval_at(at(7), period);
        ticks.set_missed_tick_behavior(Skip);
        assert_eq!((ticks.next, ticks.period(), ticks.missed_tick_behavior()), (at(7), period, Skip));
        ticks.reset();
        assert!(ticks.next > at(7));
    }

    #[test]
    fn moments_saturate() {
        assert_eq!(Instant::from_ns(5) + Duration::MAX, Instant::NEVER);
        assert_eq!(Instant::from_ns(5).since(Instant::from_ns(9)), Duration::ZERO);
        assert_eq!(Instant::from_ns(9).since(Instant::from_ns(5)), Duration::from_nanos(4));
    }
}
