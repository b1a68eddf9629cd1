//! Time: the clocks, and the deadlines at which wakers are woken.
//!
//! Each hart keeps the deadlines that were set on it and programs its own timer for the earliest, so that no deadline
//! needs a message to another hart. The timer also ends time slices; it is programmed for the earlier of the two.

pub(crate) mod deadlines;
pub(crate) mod limit;
pub(crate) mod schedule;

use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::task::Waker;

use abi_queue::pages::ticks_to_ns;
use abi_unix::Errno;
use hal_api::{MAXIMUM_HARTS, Machine as _};
use heapless::Vec as FixedVec;
use platform::{Machine, println};
use spin::Mutex;

use crate::scheduling::payers;
use crate::time::deadlines::{Deadlines, Key};

/// Time that a worker runs before others of the same priority get their turn, unless the boot word `slice` chooses
/// another.
pub(crate) const SLICE_NS: u64 = 10_000_000;

/// Slices that the boot word may choose, in milliseconds. A shorter one would be spent on switching, and a process that
/// starves waits for one slice of each other at most: with longer ones it would look dead.
const SLICES_MS: RangeInclusive<u64> = 1..=1000;

/// Time for which a worker may run on to get out of the scheduler's image.
pub(crate) const GRACE_NS: u64 = 20_000;

static TICKS_PER_SECOND: AtomicU64 = AtomicU64::new(10_000_000);
/// Nanoseconds in a tick if that is a whole number, else 0: then conversions need 128 bits.
static NS_PER_TICK: AtomicU64 = AtomicU64::new(0);
static SLICE_TICKS: AtomicU64 = AtomicU64::new(0);
static EPOCH_NS: AtomicU64 = AtomicU64::new(0);

static DEADLINES: [Mutex<Deadlines>; MAXIMUM_HARTS] = [const { Mutex::new(Deadlines::new()) }; MAXIMUM_HARTS];

/// Number of harts that this machine may have. Constant once the clock has started: each reservation takes a place on
/// all of them, and gives them back.
static HARTS: AtomicUsize = AtomicUsize::new(MAXIMUM_HARTS);

fn of_each_hart() -> &'static [Mutex<Deadlines>] {
    &DEADLINES[..HARTS.load(Ordering::Relaxed)]
}

/// Name of a deadline that was set, for [`clear`].
#[doc(alias = "hrtimer")]
#[doc(alias = "timer_list")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alarm {
    hart: usize,
    key: Key,
}

/// Right to have one deadline set at any time, on any hart, however little memory is free.
#[derive(Debug)]
pub(crate) struct Reservation(());

impl Reservation {
    /// Reserves a place on each hart; `ENOMEM` if that is impossible.
    pub(crate) fn new() -> Result<Reservation, Errno> {
        for (done, deadlines) in of_each_hart().iter().enumerate() {
            if let Err(error) = deadlines.lock().reserve() {
                of_each_hart()[..done].iter().for_each(|deadlines| deadlines.lock().release());
                return Err(error);
            }
        }
        Ok(Reservation(()))
    }

    /// Wakes `waker` at `deadline_ticks`, unless [`clear`]ed before. The holder must have no other deadline set.
    pub(crate) fn set(&self, deadline_ticks: u64, waker: &Waker) -> Alarm {
        let hart = Machine::hart();
        let mut deadlines = DEADLINES[hart].lock();
        let key = deadlines.set_reserved(deadline_ticks, waker, payers::present());
        program_for(&deadlines);
        Alarm { hart, key }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        of_each_hart().iter().for_each(|deadlines| deadlines.lock().release());
    }
}

/// Sets the time base, the present time in nanoseconds since 1970, and the number of harts. Called once, before other
/// harts start and before anything is reserved.
pub(crate) fn start(ticks_per_second: u64, real_time_ns: Option<u64>, harts: usize) {
    HARTS.store(harts.min(MAXIMUM_HARTS), Ordering::Relaxed);
    let ticks_per_second = ticks_per_second.max(1);
    TICKS_PER_SECOND.store(ticks_per_second, Ordering::Relaxed);
    if 1_000_000_000 % ticks_per_second == 0 {
        NS_PER_TICK.store(1_000_000_000 / ticks_per_second, Ordering::Relaxed);
    }
    SLICE_TICKS.store(ticks_at_ns(SLICE_NS), Ordering::Relaxed);
    match real_time_ns {
        Some(real_time_ns) => EPOCH_NS.store(real_time_ns.saturating_sub(now_ns()), Ordering::Relaxed),
        None => println!("time: there is no real-time clock; the machine starts in 1970"),
    }
}

/// Reads the length of slices from the boot command line, if it has one. Called once, before a program runs.
pub(crate) fn choose_slice(word: Option<&str>) {
    let Some(word) = word else { return };
    match slice_of(word) {
        Some(ns) => SLICE_TICKS.store(ticks_at_ns(ns), Ordering::Relaxed),
        None => {
            let (least, most) = (SLICES_MS.start(), SLICES_MS.end());
            println!("scheduling: the slice is a number of milliseconds from {least} to {most}, not `{word}`");
        }
    }
}

/// Returns the nanoseconds of a slice that the boot word `slice` chooses; `None` if it may not be.
fn slice_of(word: &str) -> Option<u64> {
    word.parse::<u64>().ok().filter(|ms| SLICES_MS.contains(ms)).map(|ms| ms * 1_000_000)
}

/// Returns the frequency of the machine's clock in ticks per second.
pub(crate) fn ticks_per_second() -> u64 {
    TICKS_PER_SECOND.load(Ordering::Relaxed)
}

/// Returns the time at tick 0 in nanoseconds since 1970.
pub(crate) fn epoch_ns() -> u64 {
    EPOCH_NS.load(Ordering::Relaxed)
}

/// Returns the time in nanoseconds since 1970.
pub(crate) fn real_time_ns() -> u64 {
    now_ns() + epoch_ns()
}

/// Returns the monotonic clock's time in nanoseconds.
#[doc(alias = "ktime_get")]
pub(crate) fn now_ns() -> u64 {
    ns_at_ticks(Machine::now())
}

/// Converts a number of ticks to nanoseconds.
pub(crate) fn ns_at_ticks(ticks: u64) -> u64 {
    match NS_PER_TICK.load(Ordering::Relaxed) {
        0 => ticks_to_ns(ticks, ticks_per_second()),
        factor => ticks.wrapping_mul(factor),
    }
}

/// Returns the tick at which the monotonic clock shows `ns` or more.
pub(crate) fn ticks_at_ns(ns: u64) -> u64 {
    let factor = NS_PER_TICK.load(Ordering::Relaxed);
    if factor != 0 {
        return ns.div_ceil(factor);
    }
    let ticks = (ns as u128 * ticks_per_second() as u128).div_ceil(1_000_000_000);
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

/// Wakes `waker` at `deadline_ticks`, unless [`clear`]ed before. `ENOMEM` if there is no memory for the deadline.
#[doc(alias = "hrtimer_start")]
#[doc(alias = "add_timer")]
pub(crate) fn set(deadline_ticks: u64, waker: &Waker) -> Result<Alarm, Errno> {
    let hart = Machine::hart();
    let mut deadlines = DEADLINES[hart].lock();
    let key = deadlines.set(deadline_ticks, waker, payers::present())?;
    program_for(&deadlines);
    Ok(Alarm { hart, key })
}

/// Programs this hart's timer for the earliest of its deadlines.
fn program_for(deadlines: &Deadlines) {
    if let Some(next) = deadlines.next() {
        program(next);
    }
}

/// Removes a deadline; does nothing if it has passed.
pub(crate) fn clear(alarm: Alarm) {
    DEADLINES[alarm.hart].lock().remove(alarm.key);
}

/// The end of the running worker's slice on each hart, in ticks; all ones while none runs.
static SLICE_END: [AtomicU64; MAXIMUM_HARTS] = [const { AtomicU64::new(u64::MAX) }; MAXIMUM_HARTS];
/// Time for which each hart's timer is programmed.
static PROGRAMMED: [AtomicU64; MAXIMUM_HARTS] = [const { AtomicU64::new(u64::MAX) }; MAXIMUM_HARTS];

/// Programs this hart's timer for `ticks` if that is earlier than its present time. Only this hart accesses its words.
#[doc(alias = "clockevents_program_event")]
fn program(ticks: u64) {
    let programmed = &PROGRAMMED[Machine::hart()];
    if ticks < programmed.load(Ordering::Relaxed) {
        programmed.store(ticks, Ordering::Relaxed);
        Machine::set_timer(ticks);
    }
}

/// Starts a slice on this hart; returns the present time.
pub(crate) fn start_slice() -> u64 {
    let now = Machine::now();
    let end = now + SLICE_TICKS.load(Ordering::Relaxed);
    SLICE_END[Machine::hart()].store(end, Ordering::Relaxed);
    program(end);
    now
}

/// Returns the length of a slice in ticks.
pub(crate) fn slice_ticks() -> u64 {
    SLICE_TICKS.load(Ordering::Relaxed)
}

/// Extends the slice of the worker that runs on this hart by [`GRACE_NS`] from now.
pub(crate) fn extend_slice() {
    let end = Machine::now() + ticks_at_ns(GRACE_NS);
    SLICE_END[Machine::hart()].store(end, Ordering::Relaxed);
    program(end);
}

/// Returns whether the slice on this hart has ended.
pub(crate) fn slice_has_ended() -> bool {
    Machine::now() >= SLICE_END[Machine::hart()].load(Ordering::Relaxed)
}

/// Ends the slice on this hart: its worker has stopped running.
pub(crate) fn stop_slice() {
    SLICE_END[Machine::hart()].store(u64::MAX, Ordering::Relaxed);
}

/// Number of deadlines that one interrupt handles. Taking one of many thousands out takes more than a thousand
/// instructions.
const DUE_AT_A_TIME: usize = 8;

/// Handles this hart's timer interrupt: wakes due deadlines and programs the timer for the next one. If more than
/// [`DUE_AT_A_TIME`] are due, the timer interrupts again for the rest.
#[doc(alias = "hrtimer_interrupt")]
pub(crate) fn on_timer() {
    let hart = Machine::hart();
    let now = Machine::now();
    let mut deadlines = DEADLINES[hart].lock();
    let mut due = FixedVec::<(Waker, u32), DUE_AT_A_TIME>::new();
    while !due.is_full()
        && let Some(expired) = deadlines.expired(now)
    {
        // There is room.
        let _ = due.push(expired);
    }
    // Woken without the lock: a waker may be an object's, and take a lock under which others set deadlines.
    drop(deadlines);
    let mut bill = FixedVec::<(u32, u64), DUE_AT_A_TIME>::new();
    let mut since = now;
    for (waker, payer) in due {
        waker.wake();
        let end = Machine::now();
        let _ = bill.push((payer, end.saturating_sub(since)));
        since = end;
    }
    // Behind all wakers, which could have set others.
    let next = DEADLINES[hart].lock().next().unwrap_or(u64::MAX);
    let slice = SLICE_END[hart].load(Ordering::Relaxed);
    // A slice that has ended already is noticed by the caller; programming it again would interrupt for ever.
    let next = if slice > now { next.min(slice) } else { next };
    PROGRAMMED[hart].store(next, Ordering::Relaxed);
    Machine::set_timer(next);
    settle(&bill);
}

/// Charges the processes that have set deadlines for the time in which these were met.
fn settle(bill: &[(u32, u64)]) {
    // The process that has the hart pays for all of its time anyway.
    let present = payers::present();
    for of_one in bill.chunk_by(|(one, _), (other, _)| one == other) {
        let payer = of_one[0].0;
        let ticks = of_one.iter().map(|(_, ticks)| ticks).sum();
        if payer != 0 && payer != present && ticks != 0 {
            payers::charge(payer, ticks);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;

    use super::*;
    use crate::testing::{Bell, run, simulation};

    fn rings(bells: &[Arc<Bell>]) -> Vec<usize> {
        bells.iter().map(|bell| bell.0.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn ticks_are_never_earlier_than_their_nanoseconds() {
        run(|_| {
            let tick = 1_000_000_000 / ticks_per_second();
            for ns in [0, 1, tick - 1, tick, tick + 1, 12_345_678_901, 1 << 60] {
                let ticks = ticks_at_ns(ns);
                assert!(ns_at_ticks(ticks) >= ns && ns_at_ticks(ticks) < ns + tick, "{ns}");
            }
            let before = now_ns();
            simulation().advance(10);
            assert_eq!(now_ns(), before + 10 * tick);
        });
    }

    #[test]
    fn slices_have_limits() {
        for (word, ns) in [("1", 1_000_000), ("10", SLICE_NS), ("1000", 1_000_000_000)] {
            assert_eq!(slice_of(word), Some(ns));
        }
        for word in ["", "0", "1001", "10ms", "-1", "18446744073709551616"] {
            assert_eq!(slice_of(word), None, "{word}");
        }
    }

    /// More deadlines than one interrupt handles are all met, those that were removed are not, and none comes early.
    #[test]
    fn every_deadline_wakes_its_waker_once() {
        run(|program| {
            let bells: Vec<_> = (0..5 * DUE_AT_A_TIME).map(|_| Arc::new(Bell::default())).collect();
            let now = Machine::now();
            let alarms: Vec<_> = bells
                .iter()
                .enumerate()
                .map(|(index, bell)| {
                    let at = now + ticks_at_ns(if index % 3 == 0 { 50_000_000 } else { 5_000_000 });
                    set(at, &Waker::from(bell.clone())).unwrap()
                })
                .collect();
            for (index, &alarm) in alarms.iter().enumerate() {
                if index % 4 == 1 {
                    clear(alarm);
                }
            }
            let expected = |index: usize, late: bool| usize::from(index % 4 != 1 && (late || !index.is_multiple_of(3)));
            program.sleep_ns(4_000_000);
            assert!(rings(&bells).iter().all(|&rings| rings == 0), "early");
            program.sleep_ns(4_000_000);
            let all = |late| (0..bells.len()).map(|index| expected(index, late)).collect::<Vec<_>>();
            assert_eq!(rings(&bells), all(false));
            program.sleep_ns(60_000_000);
            assert_eq!(rings(&bells), all(true));
            // Those that have passed are gone already.
            alarms.into_iter().for_each(clear);
        });
    }

    /// A waker that sets a deadline, whose waker records the time.
    struct Setter {
        after: u64,
        met: Arc<Recorder>,
    }

    #[derive(Default)]
    struct Recorder(AtomicU64);

    impl alloc::task::Wake for Setter {
        fn wake(self: Arc<Self>) {
            set(Machine::now() + self.after, &Waker::from(self.met.clone())).unwrap();
        }
    }

    impl alloc::task::Wake for Recorder {
        fn wake(self: Arc<Self>) {
            assert_eq!(self.0.swap(Machine::now(), Ordering::Relaxed), 0, "woken once");
        }
    }

    /// Wakers that set deadlines are called without the lock, and none of these deadlines is lost or late.
    #[test]
    fn a_waker_can_set_a_deadline() {
        run(|program| {
            let met: Vec<_> = (0..3 * DUE_AT_A_TIME).map(|_| Arc::new(Recorder::default())).collect();
            let (begin, ms) = (Machine::now(), ticks_at_ns(1_000_000));
            let after = |index: usize| ms + 10 * (index as u64 % 7);
            for (index, met) in met.iter().enumerate() {
                let setter = Arc::new(Setter { after: after(index), met: met.clone() });
                set(begin + 5 * ms, &Waker::from(setter)).unwrap();
            }
            program.sleep_ns(500_000_000);
            for (index, met) in met.iter().enumerate() {
                assert_eq!(met.0.load(Ordering::Relaxed), begin + 5 * ms + after(index), "{index}");
            }
        });
    }

    #[test]
    fn a_reserved_deadline_needs_no_memory_and_is_met() {
        run(|program| {
            let bell = Arc::new(Bell::default());
            let reserved = Reservation::new().unwrap();
            let waker = Waker::from(bell.clone());
            let alarm = reserved.set(Machine::now() + ticks_at_ns(1_000_000), &waker);
            clear(alarm);
            reserved.set(Machine::now() + ticks_at_ns(2_000_000), &waker);
            program.sleep_ns(1_500_000);
            assert_eq!(bell.0.load(Ordering::Relaxed), 0);
            program.sleep_ns(1_500_000);
            assert_eq!(bell.0.load(Ordering::Relaxed), 1);
        });
    }

    /// The timer is set for the earliest of all deadlines.
    #[test]
    fn the_timer_is_set_for_the_earliest() {
        run(|_| {
            let hart = Machine::hart();
            let programmed = || simulation().deadline(hart).unwrap();
            let bell = Waker::from(Arc::new(Bell::default()));
            let now = Machine::now();
            let before = programmed();
            let late = set(before + 500, &bell).unwrap();
            assert_eq!(programmed(), before, "something else comes first");
            let early = set(now + 50, &bell).unwrap();
            assert_eq!(programmed(), now + 50);
            clear(early);
            clear(late);
            extend_slice();
            assert!(!slice_has_ended());
            simulation().advance(ticks_at_ns(GRACE_NS));
            assert!(slice_has_ended());
            stop_slice();
            assert!(!slice_has_ended(), "none runs");
            start_slice();
        });
    }
}
