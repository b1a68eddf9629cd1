//! Time limits of operations that wait.

use core::task::Waker;

use abi_unix::Errno;
use hal_api::Machine as _;
use platform::Machine;

use crate::time::{self, Alarm};

/// Time at which a waiter stops waiting. The caller that [`arm`](TimeLimit::arm)s it must [`clear`](TimeLimit::clear)
/// it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimeLimit {
    /// No time limit.
    Never,
    /// This tick; nothing will wake the waiter then yet.
    At(u64),
    /// This tick, for which an alarm is set.
    Armed(u64, Alarm),
}

impl TimeLimit {
    /// Creates a limit so many nanoseconds from now.
    pub(crate) fn after_ns(ns: u64) -> TimeLimit {
        TimeLimit::At(time::ticks_at_ns(time::now_ns().saturating_add(ns)))
    }

    /// Returns whether the limit has passed.
    pub(crate) fn has_passed(self) -> bool {
        match self {
            TimeLimit::Never => false,
            TimeLimit::At(ticks) | TimeLimit::Armed(ticks, _) => Machine::now() >= ticks,
        }
    }

    /// Sets an alarm that wakes the waiter once, at the limit.
    pub(crate) fn arm(&mut self, waker: &Waker) -> Result<(), Errno> {
        if let TimeLimit::At(ticks) = *self {
            *self = TimeLimit::Armed(ticks, time::set(ticks, waker)?);
        }
        Ok(())
    }

    /// Takes the alarm back.
    pub(crate) fn clear(&mut self) {
        if let TimeLimit::Armed(ticks, alarm) = *self {
            time::clear(alarm);
            *self = TimeLimit::At(ticks);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use core::sync::atomic::Ordering;

    use super::*;
    use crate::testing::{Bell, run, simulation};

    #[test]
    fn a_limit_passes_when_its_time_has_come() {
        run(|_| {
            assert!(!TimeLimit::Never.has_passed());
            let limit = TimeLimit::after_ns(1_000_000);
            assert!(!limit.has_passed());
            simulation().advance(time::ticks_at_ns(1_000_000) - 1);
            assert!(!limit.has_passed());
            simulation().advance(1);
            assert!(limit.has_passed());
            assert!(TimeLimit::At(0).has_passed());
            assert!(!TimeLimit::after_ns(u64::MAX).has_passed(), "the end of time is far");
        });
    }

    #[test]
    fn a_limit_wakes_once_however_often_it_is_armed_and_not_after_it_is_cleared() {
        run(|program| {
            let bell = Arc::new(Bell::default());
            let waker = Waker::from(bell.clone());
            let mut limit = TimeLimit::after_ns(1_000_000);
            for _ in 0..3 {
                limit.arm(&waker).unwrap();
            }
            program.sleep_ns(5_000_000);
            assert_eq!(bell.0.load(Ordering::Relaxed), 1);
            limit.clear();
            let mut cleared = TimeLimit::after_ns(1_000_000);
            cleared.arm(&waker).unwrap();
            cleared.clear();
            cleared.clear();
            let mut never = TimeLimit::Never;
            never.arm(&waker).unwrap();
            program.sleep_ns(5_000_000);
            assert_eq!(bell.0.load(Ordering::Relaxed), 1);
            assert!(cleared.has_passed(), "it is a limit still");
            // Armed again, although its time has passed: it wakes at once.
            cleared.arm(&waker).unwrap();
            program.sleep_ns(1_000_000);
            assert_eq!(bell.0.load(Ordering::Relaxed), 2);
            cleared.clear();
        });
    }
}
