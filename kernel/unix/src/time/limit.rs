//! How long an operation waits at most.

use core::task::Waker;

use abi_unix::Errno;
use hal_api::Machine as _;
use platform::Machine;

use crate::time::{self, Alarm};

/// When a waiter gives up. Whoever [`arm`](TimeLimit::arm)s it [`clear`](TimeLimit::clear)s it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimeLimit {
    /// It does not.
    Never,
    /// At this tick; nothing will wake the waiter then yet.
    At(u64),
    /// At this tick, for which an alarm is set.
    Armed(u64, Alarm),
}

impl TimeLimit {
    /// So many nanoseconds from now.
    pub(crate) fn after_ns(ns: u64) -> TimeLimit {
        TimeLimit::At(time::ticks_at_ns(time::now_ns().saturating_add(ns)))
    }

    /// Whether it has passed.
    pub(crate) fn has_passed(self) -> bool {
        match self {
            TimeLimit::Never => false,
            TimeLimit::At(ticks) | TimeLimit::Armed(ticks, _) => Machine::now() >= ticks,
        }
    }

    /// Makes it wake the waiter, once.
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
