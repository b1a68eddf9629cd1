//! The timers of a process that send it signals: the three interval timers of `setitimer`, and those of `timer_create`.
//!
//! A deadline is met in an interrupt, where no signal can be sent. So a process with a timer that is set has a
//! *keeper*: one coroutine for all of its timers, which sleeps until the earliest, sends what is due, and leaves when
//! no timer is set any more. It is made, with all memory that it needs, before the first timer is set, which so can be
//! refused.
//!
//! Here are the timers and what is due; they know their process by the trait [`Timed`]. The keeper, which sends signals
//! and so is above the process, is in [`keeper`](crate::process::keeper).
//!
//! Timers of processor time have no hook where time is charged. The keeper looks again when the timer would expire if
//! all harts worked for the process from now on, and at most a hundred times a second. So they cost nothing while
//! none is set, and expire up to a hundredth of a second late, as on Linux, where the clock's tick looks at them.
//!
//! A timer whose last signal is still pending sends no other: the expirations are added to that signal's overrun.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use ::signals::{Details, Information, Signal, code};
use abi_unix::Errno;
use abi_unix::types::timer::Setting;
use spin::Mutex;

use crate::process::accounts::{Account, Charge, Resource};
use crate::scheduling::executor::{self, Cid};
use crate::scheduling::standing::MOST_CLAIM;
use crate::scheduling::steps::Ends;
use crate::time;
use crate::time::schedule::Schedule;

/// Number of timers of `timer_create` that a process can have.
pub(crate) const MOST: usize = 256;
/// Number of signals that the keeper sends at a time.
pub(super) const AT_A_TIME: usize = 8;
/// Shortest sleep of the keeper: a shorter interval gives overruns.
const SHORTEST_NS: u64 = 50_000;
/// Shortest time between two looks at processor time.
const TICK_NS: u64 = 10_000_000;

/// A process with timers, as they see it.
pub(crate) trait Timed: Ends {
    /// Returns its processor time in ticks.
    fn processor_ticks(&self) -> u64;

    /// Makes the keeper. `ENOMEM`. Called under the lock of the timers.
    fn start_keeper(&self) -> Result<Cid, Errno>;
}

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
    fn now(self, process: &impl Timed) -> u64 {
        match self {
            Counts::Time { .. } => time::now_ns(),
            // Not 0, which stands for a timer that is not set.
            Counts::Processor => time::ns_at_ticks(process.processor_ticks()) + 1,
        }
    }

    fn schedule(self, process: &impl Timed, setting: Setting, is_absolute: bool) -> Schedule {
        match self {
            Counts::Time { ahead_ns } if is_absolute => Schedule::at(setting, ahead_ns),
            Counts::Processor if is_absolute => Schedule::at(setting, 0),
            _ => Schedule::after(setting, self.now(process)),
        }
    }
}

/// The receiver of a timer's signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalReceiver {
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
    pub tells: SignalReceiver,
    /// Value of its signals; `None` for its number.
    pub value: Option<u64>,
}

/// A timer of `timer_create`.
#[doc(alias = "k_itimer")]
struct Timer {
    counts: Counts,
    tells: SignalReceiver,
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
    state: Mutex<TimersState>,
    /// Number of keepers that have not finished: one that leaves can meet its successor.
    keepers: AtomicUsize,
}

struct TimersState {
    intervals: [Schedule; 3],
    /// By their numbers.
    timers: Vec<Option<Timer>>,
    /// Charge for these.
    charge: Option<Charge>,
    keeper: Option<Cid>,
}

impl TimersState {
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
#[derive(Debug)]
pub(super) enum Due {
    /// That of an interval timer.
    Interval(Signal),
    /// That of another timer.
    Timer(SignalReceiver, Information),
}

/// The next step of the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeeperStep {
    /// To send the signals that are due, and then to look again.
    Send,
    /// To sleep until this tick.
    SleepUntil(u64),
    /// To leave.
    Leave,
}

/// The time of a look at all timers. It stays the same while signals are sent, some at a time: so an interval that is
/// shorter than this takes neither keeps the keeper awake nor the others from their turn.
pub(super) struct Pass {
    time_ns: u64,
    processor_ns: u64,
}

impl Timers {
    /// Makes the state without any.
    pub(crate) const fn new() -> Timers {
        let state = TimersState { intervals: [Schedule::NONE; 3], timers: Vec::new(), charge: None, keeper: None };
        Timers { state: Mutex::new(state), keepers: AtomicUsize::new(0) }
    }

    /// Returns whether there is no keeper. A process that has ended gets none any more.
    pub(crate) fn are_at_rest(&self) -> bool {
        self.keepers.load(Ordering::Acquire) == 0
    }

    /// Returns the keeper, if there is one.
    #[cfg(test)]
    pub(super) fn keeper(&self) -> Option<Cid> {
        self.state.lock().keeper
    }

    /// Makes the keeper of a process that has ended leave; returns `false` if there is none.
    pub(super) fn end(&self) -> bool {
        let keeper = self.state.lock().keeper;
        if let Some(keeper) = keeper {
            executor::set_priority(keeper, MOST_CLAIM);
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

    /// Returns what is left of an interval timer. `EINVAL` if there is none of this number.
    pub(crate) fn interval_left(&self, process: &impl Timed, which: usize) -> Result<Setting, Errno> {
        let (counts, _) = INTERVAL_TIMERS.get(which).ok_or(Errno::EINVAL)?;
        let now = counts.now(process);
        Ok(self.state.lock().intervals[which].left(now))
    }

    /// Sets an interval timer; returns what was left of its old setting.
    #[doc(alias = "do_setitimer")]
    pub(crate) fn set_interval(&self, process: &impl Timed, which: usize, setting: Setting) -> Result<Setting, Errno> {
        let (counts, _) = *INTERVAL_TIMERS.get(which).ok_or(Errno::EINVAL)?;
        let (now, schedule) = (counts.now(process), counts.schedule(process, setting, false));
        let mut state = self.state.lock();
        self.prepare_keeper(process, &mut state, schedule)?;
        let left = state.intervals[which].left(now);
        state.intervals[which] = schedule;
        Ok(left)
    }

    /// Makes a timer, for which an account pays; returns its number. `EAGAIN` if there are too many.
    pub(crate) fn create(&self, account: &Arc<Account>, description: Description) -> Result<usize, Errno> {
        let Description { counts, tells, value } = description;
        let mut state = self.state.lock();
        let free = state.timers.iter().position(Option::is_none).unwrap_or(state.timers.len());
        if free == MOST {
            return Err(Errno::EAGAIN);
        }
        if free == state.timers.len() {
            let charge = account.charge(Resource::Memory, size_of::<Option<Timer>>())?;
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
    pub(crate) fn left(&self, process: &impl Timed, number: usize) -> Result<Setting, Errno> {
        let counts = self.state.lock().timer(number)?.counts;
        let now = counts.now(process);
        Ok(self.state.lock().timer(number)?.schedule.left(now))
    }

    /// Sets a timer; returns what was left of its old setting.
    pub(crate) fn set(
        &self,
        process: &impl Timed,
        number: usize,
        setting: Setting,
        is_absolute: bool,
    ) -> Result<Setting, Errno> {
        let counts = self.state.lock().timer(number)?.counts;
        let (now, schedule) = (counts.now(process), counts.schedule(process, setting, is_absolute));
        let mut state = self.state.lock();
        self.prepare_keeper(process, &mut state, schedule)?;
        let timer = state.timer(number)?;
        let left = timer.schedule.left(now);
        (timer.schedule, timer.last_overrun) = (schedule, 0);
        Ok(left)
    }

    /// Returns the number of expirations that were missed before a timer's last signal.
    pub(crate) fn overrun(&self, number: usize) -> Result<usize, Errno> {
        Ok(self.state.lock().timer(number)?.last_overrun as usize)
    }

    /// Deletes a timer.
    pub(crate) fn delete(&self, number: usize) -> Result<(), Errno> {
        let mut state = self.state.lock();
        state.timer(number)?;
        state.timers[number] = None;
        Ok(())
    }

    /// Makes the keeper look at a schedule that is about to be set, under the lock; makes one if there is none.
    /// `ENOMEM`, or `EAGAIN` if the process has ended.
    fn prepare_keeper(&self, process: &impl Timed, state: &mut TimersState, schedule: Schedule) -> Result<(), Errno> {
        if schedule.next_ns().is_none() {
            return Ok(());
        }
        if let Some(keeper) = state.keeper {
            executor::wake(keeper);
            return Ok(());
        }
        if process.has_ended() {
            return Err(Errno::EAGAIN);
        }
        state.keeper = Some(process.start_keeper()?);
        // Ordered by the lock, which the keeper takes before it leaves.
        self.keepers.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Decides what the keeper of a process does next, and fills `due`, which is empty. `pass` is the time of its look,
    /// which goes through all timers, `None` for a new one.
    pub(super) fn next_for_keeper(
        &self,
        process: &impl Timed,
        pass: &mut Option<Pass>,
        due: &mut heapless::Vec<Due, AT_A_TIME>,
    ) -> KeeperStep {
        let fresh = || Pass { time_ns: time::now_ns(), processor_ns: Counts::Processor.now(process) };
        let &mut Pass { time_ns: time_now, processor_ns: processor_now } = pass.get_or_insert_with(fresh);
        let now = |counts: Counts| if counts == Counts::Processor { processor_now } else { time_now };
        let mut state = self.state.lock();
        if process.has_ended() {
            state.keeper = None;
            return KeeperStep::Leave;
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
            let (SignalReceiver::Process(signal) | SignalReceiver::Thread(signal, _)) = timer.tells else { continue };
            if expirations != 0 {
                let overrun = i32::try_from(expirations - 1).unwrap_or(i32::MAX);
                let details = Details::Timer { id: number as i32, overrun, value: timer.value };
                let _ = due.push(Due::Timer(timer.tells, Information { signal, code: code::TIMER, details }));
            }
        }
        if !due.is_empty() {
            return KeeperStep::Send;
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
            Some(at) => KeeperStep::SleepUntil(time::ticks_at_ns(at)),
            None => {
                state.keeper = None;
                KeeperStep::Leave
            }
        }
    }

    /// Records that a keeper has finished.
    pub(super) fn keeper_has_left(&self) {
        self.keepers.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;
    use crate::testing::{run, simulation};

    const MS: u64 = 1_000_000;

    /// A process of which only its time and its end are known.
    #[derive(Default)]
    struct Fake {
        ticks: Cell<u64>,
        has_ended: Cell<bool>,
        lacks_memory: Cell<bool>,
        keepers: Cell<u64>,
    }

    impl Ends for Fake {
        fn has_ended(&self) -> bool {
            self.has_ended.get()
        }
    }

    impl Timed for Fake {
        fn processor_ticks(&self) -> u64 {
            self.ticks.get()
        }

        fn start_keeper(&self) -> Result<Cid, Errno> {
            if self.lacks_memory.get() {
                return Err(Errno::ENOMEM);
            }
            self.keepers.set(self.keepers.get() + 1);
            Ok(Cid::from_raw(u64::MAX))
        }
    }

    fn every(interval_ns: u64) -> Setting {
        Setting { value_ns: interval_ns, interval_ns }
    }

    const OF_TIME: Description =
        Description { counts: Counts::Time { ahead_ns: 0 }, tells: SignalReceiver::Process(Signal::ALRM), value: None };

    #[test]
    fn timers_that_do_not_exist_and_keepers_that_cannot_be_made_are_errors() {
        run(|program| {
            let (timers, fake, account) = (Timers::new(), Fake::default(), program.process().account.clone());
            assert_eq!(timers.interval_left(&fake, 3), Err(Errno::EINVAL));
            assert_eq!(timers.set_interval(&fake, usize::MAX, every(MS)), Err(Errno::EINVAL));
            let number = timers.create(&account, OF_TIME).unwrap();
            for missing in [number + 1, usize::MAX] {
                assert_eq!(timers.left(&fake, missing), Err(Errno::EINVAL));
                assert_eq!(timers.set(&fake, missing, Setting::default(), false), Err(Errno::EINVAL));
                assert_eq!(timers.overrun(missing), Err(Errno::EINVAL));
                assert_eq!(timers.delete(missing), Err(Errno::EINVAL));
            }
            fake.lacks_memory.set(true);
            assert_eq!(timers.set(&fake, number, every(MS), false), Err(Errno::ENOMEM));
            assert_eq!(timers.set_interval(&fake, 0, every(MS)), Err(Errno::ENOMEM));
            fake.lacks_memory.set(false);
            fake.has_ended.set(true);
            assert_eq!(timers.set_interval(&fake, 0, every(MS)), Err(Errno::EAGAIN));
            assert_eq!(
                timers.set_interval(&fake, 0, Setting::default()),
                Ok(Setting::default()),
                "no keeper is needed"
            );
            fake.has_ended.set(false);
            assert_eq!(timers.left(&fake, number), Ok(Setting::default()), "nothing was set");
            assert!(timers.are_at_rest() && fake.keepers.get() == 0);
            let before = account.used(Resource::Memory);
            for _ in 1..MOST {
                timers.create(&account, OF_TIME).unwrap();
            }
            assert_eq!(timers.create(&account, OF_TIME), Err(Errno::EAGAIN));
            timers.delete(7).unwrap();
            assert_eq!(timers.create(&account, OF_TIME), Ok(7), "a number is used again");
            assert!(account.used(Resource::Memory) > before);
            timers.start_afresh();
            assert_eq!(account.used(Resource::Memory), before - size_of::<Option<Timer>>());
            assert_eq!(timers.delete(number), Err(Errno::EINVAL));
        });
    }

    /// One keeper is made for all timers, and leaves when none is set. Processor time counts by itself.
    #[test]
    fn the_keeper_sleeps_until_the_earliest_timer_and_leaves_after_the_last() {
        run(|_| {
            let (timers, fake, mut pass) = (Timers::new(), Fake::default(), None);
            let step = |pass: &mut Option<Pass>| {
                let mut due = heapless::Vec::new();
                let step = timers.next_for_keeper(&fake, pass, &mut due);
                let signals: Vec<Signal> = due
                    .iter()
                    .map(|due| match due {
                        Due::Interval(signal) => *signal,
                        Due::Timer(_, information) => information.signal,
                    })
                    .collect();
                (step, signals)
            };
            timers.set_interval(&fake, 1, Setting { value_ns: 50 * MS, interval_ns: 0 }).unwrap();
            timers.set_interval(&fake, 0, Setting { value_ns: 5 * MS, interval_ns: 0 }).unwrap();
            assert_eq!(fake.keepers.get(), 1);
            let due_at = time::now_ns() + 5 * MS;
            let (KeeperStep::SleepUntil(ticks), _) = step(&mut pass) else { panic!("nothing is due") };
            assert!(ticks <= time::ticks_at_ns(due_at) && ticks >= time::ticks_at_ns(due_at - MS));
            simulation().advance(time::ticks_at_ns(6 * MS));
            assert_eq!(step(&mut pass), (KeeperStep::Send, alloc::vec![Signal::ALRM]));
            let (KeeperStep::SleepUntil(_), _) = step(&mut pass) else { panic!("the process has not worked") };
            fake.ticks.set(time::ticks_at_ns(51 * MS));
            assert_eq!(step(&mut pass), (KeeperStep::Send, alloc::vec![Signal::VTALRM]));
            assert_eq!(step(&mut pass), (KeeperStep::Leave, Vec::new()));
            timers.set_interval(&fake, 0, every(MS)).unwrap();
            assert_eq!(fake.keepers.get(), 2, "a successor");
            fake.has_ended.set(true);
            assert_eq!(step(&mut pass), (KeeperStep::Leave, Vec::new()), "of a process that has ended");
            assert!(timers.end(), "the keepers have not finished");
            timers.keeper_has_left();
            timers.keeper_has_left();
            assert!(!timers.end() && timers.are_at_rest());
        });
    }

    /// More timers than one step sends, all of them shorter than it takes: each has its turn, with its overrun.
    #[test]
    fn all_due_timers_are_sent_in_portions_with_the_expirations_that_were_missed() {
        run(|program| {
            let (timers, fake, account) = (Timers::new(), Fake::default(), program.process().account.clone());
            for _ in 0..2 * AT_A_TIME + 1 {
                let number = timers.create(&account, OF_TIME).unwrap();
                timers.set(&fake, number, every(MS), false).unwrap();
            }
            // A timer that tells none is never due.
            let silent = timers.create(&account, Description { tells: SignalReceiver::Nobody, ..OF_TIME }).unwrap();
            timers.set(&fake, silent, every(MS), false).unwrap();
            simulation().advance(time::ticks_at_ns(3 * MS + MS / 2));
            let (mut pass, mut sent) = (None, Vec::new());
            loop {
                let mut due = heapless::Vec::new();
                match timers.next_for_keeper(&fake, &mut pass, &mut due) {
                    KeeperStep::Send => {
                        // It takes longer than the interval.
                        simulation().advance(time::ticks_at_ns(2 * MS));
                        for due in &due {
                            let Due::Timer(_, information) = due else { panic!("no interval timer is set") };
                            let Details::Timer { id, overrun, .. } = information.details else { panic!() };
                            assert_eq!(overrun, 2);
                            sent.push(id);
                            timers.note_taken(information);
                        }
                    }
                    step => {
                        assert!(matches!(step, KeeperStep::SleepUntil(_)));
                        break;
                    }
                }
            }
            assert_eq!(sent, Vec::from_iter(0..2 * AT_A_TIME as i32 + 1));
            assert_eq!(timers.overrun(0), Ok(2));
        });
    }
}
