//! The timers of a process that send it signals: the three interval timers of `setitimer`, and those of `timer_create`.
//!
//! A deadline is met in an interrupt, where no signal can be sent. So a process with a timer that is set has a
//! *keeper*: one coroutine for all of its timers, which sleeps until the earliest, sends what is due, and leaves when
//! no timer is set any more. It is made, with all memory that it needs, before the first timer is set, which so can be
//! refused.
//!
//! Timers of processor time have no hook where time is charged. The keeper looks again when the timer would expire if
//! all harts worked for the process from now on, and at most a hundred times a second. So they cost nothing while
//! none is set, and expire up to a hundredth of a second late, as on Linux, where the clock's tick looks at them.
//!
//! A timer whose last signal is still pending sends no other: the expirations are added to that signal's overrun.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Poll, Waker};

use ::signals::{Details, Information, Signal, code};
use abi_unix::Errno;
use abi_unix::types::timer::Setting;
use spin::Mutex;

use crate::process::accounts::{Charge, Resource};
use crate::process::{Process, delivery};
use crate::scheduling::executor::{self, Cid, SpawnError};
use crate::time::schedule::Schedule;
use crate::time::{self, Alarm, Reservation};

/// Number of timers of `timer_create` that a process can have.
pub(crate) const MOST: usize = 256;
/// Number of signals that the keeper sends at a time.
const AT_A_TIME: usize = 8;
/// Shortest sleep of the keeper: a shorter interval gives overruns.
const SHORTEST_NS: u64 = 50_000;
/// Shortest time between two looks at processor time.
const TICK_NS: u64 = 10_000_000;

/// The clock that a timer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    /// The time that passes, on a clock that is so far ahead of the monotonic one.
    Time {
        /// Nanoseconds.
        ahead_ns: u64,
    },
    /// The processor time of the process.
    Processor,
}

impl Counts {
    /// Returns its time in nanoseconds, without the difference to the monotonic clock.
    fn now(self, process: &Process) -> u64 {
        match self {
            Counts::Time { .. } => time::now_ns(),
            // Not 0, which stands for a timer that is not set.
            Counts::Processor => time::ns_at_ticks(process.cpu_ticks()) + 1,
        }
    }

    fn schedule(self, process: &Process, setting: Setting, is_absolute: bool) -> Schedule {
        match self {
            Counts::Time { ahead_ns } if is_absolute => Schedule::at(setting, ahead_ns),
            Counts::Processor if is_absolute => Schedule::at(setting, 0),
            _ => Schedule::after(setting, self.now(process)),
        }
    }
}

/// The receiver of a timer's signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tells {
    /// None: its setting is read.
    Nobody,
    /// The process.
    Process(Signal),
    /// The thread or worker in this slot.
    Thread(Signal, usize),
}

/// A timer that is to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Description {
    /// Its clock.
    pub counts: Counts,
    /// Its receiver.
    pub tells: Tells,
    /// Value of its signals; `None` for its number.
    pub value: Option<u64>,
}

/// A timer of `timer_create`.
#[doc(alias = "k_itimer")]
struct Timer {
    counts: Counts,
    tells: Tells,
    value: u64,
    schedule: Schedule,
    /// Overrun of its last signal that was taken.
    last_overrun: i32,
}

/// The interval timers, in the order of their numbers: clock and signal.
const INTERVAL_TIMERS: [(Counts, Signal); 3] = [
    (Counts::Time { ahead_ns: 0 }, Signal::ALRM),
    (Counts::Processor, Signal::VTALRM),
    (Counts::Processor, Signal::PROF),
];

/// The timers of a process.
#[doc(alias = "posix_timers")]
pub(crate) struct Timers {
    state: Mutex<State>,
    /// Number of keepers that have not finished: one that leaves can meet its successor.
    keepers: AtomicUsize,
}

struct State {
    intervals: [Schedule; 3],
    /// By their numbers.
    timers: Vec<Option<Timer>>,
    /// Charge for these.
    charge: Option<Charge>,
    keeper: Option<Cid>,
}

impl State {
    fn timer(&mut self, number: usize) -> Result<&mut Timer, Errno> {
        self.timers.get_mut(number).and_then(Option::as_mut).ok_or(Errno::EINVAL)
    }

    /// Returns all schedules that are set, with their clocks.
    fn schedules(&self) -> impl Iterator<Item = (Counts, &Schedule)> {
        let intervals = INTERVAL_TIMERS.iter().zip(&self.intervals).map(|((counts, _), schedule)| (*counts, schedule));
        intervals.chain(self.timers.iter().flatten().map(|timer| (timer.counts, &timer.schedule)))
    }
}

/// A signal that is due.
enum Due {
    Interval(Signal),
    Timer(Tells, Information),
}

/// The next step of the keeper.
enum Next {
    /// To send the signals that are due, and then to look again.
    Send,
    /// To sleep until this tick.
    SleepUntil(u64),
    /// To leave.
    Leave,
}

/// The time of a look at all timers. It stays the same while signals are sent, some at a time: so an interval that is
/// shorter than this takes neither keeps the keeper awake nor the others from their turn.
struct Pass {
    time_ns: u64,
    processor_ns: u64,
}

impl Timers {
    /// Makes the state without any.
    pub(crate) const fn new() -> Timers {
        let state = State { intervals: [Schedule::NONE; 3], timers: Vec::new(), charge: None, keeper: None };
        Timers { state: Mutex::new(state), keepers: AtomicUsize::new(0) }
    }

    /// Returns whether there is no keeper. A process that has ended gets none any more.
    pub(super) fn are_at_rest(&self) -> bool {
        self.keepers.load(Ordering::Acquire) == 0
    }

    /// Makes the keeper of a process that has ended leave; returns `false` if there is none.
    pub(super) fn end(&self) -> bool {
        let keeper = self.state.lock().keeper;
        if let Some(keeper) = keeper {
            executor::wake(keeper);
        }
        !self.are_at_rest()
    }

    /// Deletes the timers of `timer_create`, for another program.
    pub(super) fn start_afresh(&self) {
        let mut state = self.state.lock();
        let old = (core::mem::take(&mut state.timers), state.charge.take());
        drop(state);
        drop(old);
    }

    /// Records that a signal was taken, if it is a timer's.
    pub(super) fn note_taken(&self, information: &Information) {
        if let Details::Timer { id, overrun, .. } = information.details
            && let Ok(timer) = self.state.lock().timer(id as usize)
        {
            timer.last_overrun = overrun;
        }
    }
}

impl Process {
    /// Returns what is left of an interval timer. `EINVAL` if there is none of this number.
    pub(crate) fn interval_left(&self, which: usize) -> Result<Setting, Errno> {
        let (counts, _) = INTERVAL_TIMERS.get(which).ok_or(Errno::EINVAL)?;
        let now = counts.now(self);
        Ok(self.timers.state.lock().intervals[which].left(now))
    }

    /// Sets an interval timer; returns what was left of its old setting.
    #[doc(alias = "do_setitimer")]
    pub(crate) fn set_interval(self: &Arc<Self>, which: usize, setting: Setting) -> Result<Setting, Errno> {
        let (counts, _) = *INTERVAL_TIMERS.get(which).ok_or(Errno::EINVAL)?;
        let (now, schedule) = (counts.now(self), counts.schedule(self, setting, false));
        let mut state = self.timers.state.lock();
        self.prepare_keeper(&mut state, schedule)?;
        let left = state.intervals[which].left(now);
        state.intervals[which] = schedule;
        Ok(left)
    }

    /// Makes a timer; returns its number. `EAGAIN` if there are too many.
    pub(crate) fn create_timer(&self, description: Description) -> Result<usize, Errno> {
        let Description { counts, tells, value } = description;
        let mut state = self.timers.state.lock();
        let free = state.timers.iter().position(Option::is_none).unwrap_or(state.timers.len());
        if free == MOST {
            return Err(Errno::EAGAIN);
        }
        if free == state.timers.len() {
            let charge = self.account.charge(Resource::Memory, size_of::<Option<Timer>>())?;
            state.timers.try_reserve_exact(1).map_err(|_| Errno::ENOMEM)?;
            state.timers.push(None);
            match &mut state.charge {
                Some(whole) => whole.merge(charge),
                none => *none = Some(charge),
            }
        }
        let value = value.unwrap_or(free as u64);
        state.timers[free] = Some(Timer { counts, tells, value, schedule: Schedule::NONE, last_overrun: 0 });
        Ok(free)
    }

    /// Returns what is left of a timer's setting. `EINVAL` if there is no such timer.
    pub(crate) fn timer_left(&self, number: usize) -> Result<Setting, Errno> {
        let counts = self.timers.state.lock().timer(number)?.counts;
        let now = counts.now(self);
        Ok(self.timers.state.lock().timer(number)?.schedule.left(now))
    }

    /// Sets a timer; returns what was left of its old setting.
    pub(crate) fn set_timer(
        self: &Arc<Self>,
        number: usize,
        setting: Setting,
        is_absolute: bool,
    ) -> Result<Setting, Errno> {
        let counts = self.timers.state.lock().timer(number)?.counts;
        let (now, schedule) = (counts.now(self), counts.schedule(self, setting, is_absolute));
        let mut state = self.timers.state.lock();
        self.prepare_keeper(&mut state, schedule)?;
        let timer = state.timer(number)?;
        let left = timer.schedule.left(now);
        (timer.schedule, timer.last_overrun) = (schedule, 0);
        Ok(left)
    }

    /// Returns the number of expirations that were missed before a timer's last signal.
    pub(crate) fn timer_overrun(&self, number: usize) -> Result<usize, Errno> {
        Ok(self.timers.state.lock().timer(number)?.last_overrun as usize)
    }

    /// Deletes a timer.
    pub(crate) fn delete_timer(&self, number: usize) -> Result<(), Errno> {
        let mut state = self.timers.state.lock();
        state.timer(number)?;
        state.timers[number] = None;
        Ok(())
    }

    /// Makes the keeper look at a schedule that is about to be set, under the lock; makes one if there is none.
    /// `ENOMEM`, or `EAGAIN` if the process has ended.
    fn prepare_keeper(self: &Arc<Self>, state: &mut State, schedule: Schedule) -> Result<(), Errno> {
        if schedule.next_ns().is_none() {
            return Ok(());
        }
        if let Some(keeper) = state.keeper {
            executor::wake(keeper);
            return Ok(());
        }
        if self.has_ended() {
            return Err(Errno::EAGAIN);
        }
        let future = keep(self.clone(), Reservation::new()?);
        let keeper = executor::spawn_for(self.clone(), self.claimed_priority(), future);
        state.keeper = Some(keeper.map_err(|SpawnError(_)| Errno::ENOMEM)?);
        // Ordered by the lock, which the keeper takes before it leaves.
        self.timers.keepers.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Decides what the keeper of this process does next, and fills `due`, which is empty. `pass` is the time of its
    /// look, which goes through all timers, `None` for a new one.
    fn next_for_keeper(&self, pass: &mut Option<Pass>, due: &mut heapless::Vec<Due, AT_A_TIME>) -> Next {
        let fresh = || Pass { time_ns: time::now_ns(), processor_ns: Counts::Processor.now(self) };
        let &mut Pass { time_ns: time_now, processor_ns: processor_now } = pass.get_or_insert_with(fresh);
        let now = |counts: Counts| if counts == Counts::Processor { processor_now } else { time_now };
        let mut state = self.timers.state.lock();
        if self.has_ended() {
            state.keeper = None;
            return Next::Leave;
        }
        let intervals = INTERVAL_TIMERS.iter().zip(&mut state.intervals);
        for ((counts, signal), schedule) in intervals {
            if schedule.expirations(now(*counts)) != 0 {
                let _ = due.push(Due::Interval(*signal));
            }
        }
        for (number, timer) in state.timers.iter_mut().enumerate() {
            let Some(timer) = timer else { continue };
            if due.is_full() {
                break;
            }
            let expirations = timer.schedule.expirations(now(timer.counts));
            let (Tells::Process(signal) | Tells::Thread(signal, _)) = timer.tells else { continue };
            if expirations != 0 {
                let overrun = i32::try_from(expirations - 1).unwrap_or(i32::MAX);
                let details = Details::Timer { id: number as i32, overrun, value: timer.value };
                let _ = due.push(Due::Timer(timer.tells, Information { signal, code: code::TIMER, details }));
            }
        }
        if !due.is_empty() {
            return Next::Send;
        }
        *pass = None;
        let (begin, harts) = (time::now_ns(), crate::machine::harts() as u64);
        let earliest = state.schedules().filter_map(|(counts, schedule)| {
            let next = schedule.next_ns()?;
            Some(match counts {
                Counts::Time { .. } => next.max(begin + SHORTEST_NS),
                // Earlier it cannot expire.
                Counts::Processor => begin + ((next.saturating_sub(processor_now)) / harts).max(TICK_NS),
            })
        });
        match earliest.min() {
            Some(at) => Next::SleepUntil(time::ticks_at_ns(at)),
            None => {
                state.keeper = None;
                Next::Leave
            }
        }
    }

    fn send_due(&self, due: &Due) {
        match due {
            Due::Interval(signal) => delivery::send_from_kernel(self, *signal),
            Due::Timer(tells, information) => {
                let target = match tells {
                    // A thread that is gone gets none.
                    Tells::Thread(_, slot) => match self.worker_or_thread(*slot) {
                        None => return,
                        found => found,
                    },
                    _ => None,
                };
                delivery::send_of_timer(self, target.as_deref(), *information);
            }
        }
    }
}

/// The keeper's deadline, which is taken back with it.
struct Deadline {
    reserved: Reservation,
    alarm: Option<Alarm>,
}

impl Deadline {
    fn clear(&mut self) {
        if let Some(alarm) = self.alarm.take() {
            time::clear(alarm);
        }
    }

    fn set(&mut self, ticks: u64, waker: &Waker) {
        self.clear();
        self.alarm = Some(self.reserved.set(ticks, waker));
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The keeper of a process's timers.
async fn keep(process: Arc<Process>, reserved: Reservation) {
    let (mut deadline, mut pass) = (Deadline { reserved, alarm: None }, None);
    poll_fn(|cx| {
        let priority = process.claimed_priority();
        if executor::current_priority() != priority {
            executor::set_priority(executor::current(), priority);
        }
        let mut due = heapless::Vec::new();
        match process.next_for_keeper(&mut pass, &mut due) {
            Next::Leave => return Poll::Ready(()),
            Next::SleepUntil(ticks) => deadline.set(ticks, cx.waker()),
            Next::Send => {
                due.iter().for_each(|due| process.send_due(due));
                cx.waker().wake_by_ref();
            }
        }
        Poll::Pending
    })
    .await;
    drop(deadline);
    process.timers.keepers.fetch_sub(1, Ordering::Release);
    process.timers_are_at_rest();
}
