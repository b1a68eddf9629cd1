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
