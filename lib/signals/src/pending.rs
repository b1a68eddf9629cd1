//! Signals that were sent and have not been delivered.

use alloc::vec::Vec;

use crate::information::{Details, Information, code};
use crate::set::{Set, Signal};

/// Pending signals of a process or of a thread.
///
/// Of a standard signal at most one is pending, with the information of the first. Real-time signals queue. If there is
/// no memory for the information of a signal, the signal is pending without it, as on Linux.
#[derive(Debug, Default)]
#[doc(alias = "sigpending")]
pub struct Pending {
    set: Set,
    /// Information in the order of sending.
    queue: Vec<Information>,
}

/// A real-time signal that a program sends with a value found no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl Pending {
    /// Greatest number of signals that queue in a process; more keep no information, and are `EAGAIN` for `sigqueue`.
    pub const LONGEST: usize = 256;
    /// Bytes of memory that so many take.
    pub const MEMORY: usize = Pending::LONGEST * size_of::<Information>();

    /// Makes the state without any.
    pub const fn new() -> Pending {
        Pending { set: Set::EMPTY, queue: Vec::new() }
    }

    /// Returns the pending signals.
    pub const fn set(&self) -> Set {
        self.set
    }

    /// Returns the number of signals that queue with their information.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Adds a signal, with its information if that may queue. One that is standard and pending already is not added
    /// again.
    ///
    /// # Errors
    /// There is no room for the information. The signal is pending without it, unless it is a real-time signal of
    /// `sigqueue`, whose value would be lost: that is not added.
    pub fn add(&mut self, information: Information, has_room: bool) -> Result<(), Full> {
        let signal = information.signal;
        if self.set.has(signal) && !signal.is_real_time() {
            return Ok(());
        }
        let has_room = has_room && self.queue.try_reserve(1).is_ok();
        if has_room {
            self.queue.push(information);
        } else if signal.is_real_time() && information.code == code::QUEUE {
            return Err(Full);
        }
        self.set.insert(signal);
        if has_room { Ok(()) } else { Err(Full) }
    }

    /// Adds the expirations of a timer's signal to the overrun of that which is pending from the same timer; returns
    /// `false` if none is.
    pub fn count_overrun(&mut self, information: &Information) -> bool {
        let Details::Timer { id, overrun, value } = information.details else { return false };
        let same = |other: &&mut Information| {
            let is_of_timer =
                matches!(other.details, Details::Timer { id: own, value: its, .. } if (own, its) == (id, value));
            is_of_timer && other.signal == information.signal
        };
        let Some(pending) = self.queue.iter_mut().find(same) else { return false };
        if let Details::Timer { overrun: counted, .. } = &mut pending.details {
            *counted = counted.saturating_add(overrun).saturating_add(1);
        }
        true
    }

    /// Removes all of these signals.
    pub fn remove_all(&mut self, signals: Set) {
        self.set = self.set.without(signals);
        self.queue.retain(|information| !signals.has(information.signal));
        self.shrink();
    }

    /// Gives room back that was needed for more signals. Without memory to move the others, the room stays.
    fn shrink(&mut self) {
        if self.queue.capacity() > 4 * self.queue.len() + 4 {
            let mut smaller = Vec::new();
            if smaller.try_reserve_exact(self.queue.len()).is_ok() {
                smaller.append(&mut self.queue);
                self.queue = smaller;
            }
        }
    }

    /// Returns the information of a signal that is pending: of the first of its kind.
    pub fn peek(&self, signal: Signal) -> Option<Information> {
        if !self.set.has(signal) {
            return None;
        }
        let found = self.queue.iter().find(|information| information.signal == signal);
        Some(found.copied().unwrap_or(Information::without_details(signal)))
    }

    /// Takes a signal that is pending: the first of its kind.
    pub fn take(&mut self, signal: Signal) -> Option<Information> {
        if !self.set.has(signal) {
            return None;
        }
        let of_kind = |information: &Information| information.signal == signal;
        let found = self.queue.iter().position(of_kind).map(|place| self.queue.remove(place));
        if !self.queue.iter().any(of_kind) {
            self.set.remove(signal);
        }
        self.shrink();
        Some(found.unwrap_or(Information::without_details(signal)))
    }
}
