//! The watchdog's memory of a process: when it has stood still, and how ([`observing::standstill`]).
//!
//! [`observing::standstill`]: crate::observing::standstill

use abi_queue::Priority;

/// Number of looks, after the first one, that find the same standstill before it is reported.
pub(crate) const LOOKS: u8 = 2;

/// A standstill, by its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standstill {
    /// Coroutines of this priority, at best, are ready, and no worker runs.
    HeldUp(Priority),
    /// No coroutine is ready, and none will be.
    AsleepForGood,
}

/// The watchdog's memory of a process.
#[derive(Debug, Default)]
pub(crate) struct Sightings {
    /// Standstill at the last look, with the processor time of the process in ticks.
    last: Option<(Standstill, u64)>,
    /// Number of looks that have found it again.
    again: u8,
}

impl Sightings {
    /// Adds a look, with the processor time of a process that stands still; returns the standstill if it is to be
    /// reported now.
    pub(crate) fn add(&mut self, now: Option<(Standstill, u64)>) -> Option<Standstill> {
        if now.is_none() || self.last != now {
            *self = Sightings { last: now, again: 0 };
            return None;
        }
        self.again = self.again.saturating_add(1);
        now.filter(|_| self.again == LOOKS).map(|(kind, _)| kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD_UP: Option<Standstill> = Some(Standstill::HeldUp(Priority::HIGHEST));
    const ASLEEP: Option<Standstill> = Some(Standstill::AsleepForGood);

    #[test]
    fn only_an_unchanged_standstill_is_reported_and_once() {
        for kind in [HELD_UP, ASLEEP] {
            let mut sightings = Sightings::default();
            let told: std::vec::Vec<_> = (0..600).map(|_| sightings.add(kind.map(|kind| (kind, 7)))).collect();
            assert_eq!(told.iter().filter(|told| told.is_some()).count(), 1);
            assert_eq!(told[LOOKS as usize], kind);
            // Time that it has used is progress, and so is another moment.
            assert!((0..600).all(|ticks| sightings.add(kind.map(|kind| (kind, ticks))).is_none()));
            assert!((0..600).all(|look| sightings.add([kind, None][look % 2].map(|kind| (kind, 7))).is_none()));
            assert!((0..600).all(|look| sightings.add([HELD_UP, ASLEEP][look % 2].map(|kind| (kind, 7))).is_none()));
        }
    }
}
