//! Timestamps (RFC 7323): a clock of this side that the other side tells back, and the other side's.

use crate::{Time, is_before};

/// Microseconds of a tick of this side's clock, one of those that RFC 7323 allows (section 5.4).
pub(crate) const TICK: Time = 1000;
/// Time after which a timestamp that has come says nothing any more: in little more, the fastest clock that is allowed
/// has gone half around (RFC 7323, section 5.5).
const LIFE: Time = 24 * 24 * 3600 * 1_000_000;
/// Microseconds of the unit in which the time of a timestamp's arrival is kept, as a shift.
const UNIT: u32 = 20;

/// The clock of this side as one connection tells it, and the timestamp that is told back to the other side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// Offset of the clock: nobody is to learn how long this machine is up (RFC 7323, section 7.1).
    offset: u32,
    /// The other side's timestamp (`TS.Recent`), and the time at which it has come.
    recent: u32,
    recent_at: u32,
}

impl Stamps {
    /// Makes the timestamps of a side that has heard none. The offset is to be a secret of these two ends.
    pub fn new(offset: u32) -> Stamps {
        Stamps { offset, recent: 0, recent_at: 0 }
    }

    /// Returns these timestamps after one of the other side has come.
    #[must_use]
    pub fn with(mut self, recent: u32, now: Time) -> Stamps {
        self.note(recent, now);
        self
    }

    /// Takes a timestamp of the other side that is to be told back.
    #[inline(always)]
    pub(crate) fn note(&mut self, recent: u32, now: Time) {
        (self.recent, self.recent_at) = (recent, (now >> UNIT) as u32);
    }

    /// Returns the timestamps of a segment that leaves now: this side's, and the one that is told back.
    #[inline(always)]
    pub fn told(&self, now: Time) -> (u32, u32) {
        (self.clock(now), self.recent)
    }

    #[inline(always)]
    fn clock(&self, now: Time) -> u32 {
        ((now / TICK) as u32).wrapping_add(self.offset)
    }

    /// Whether the segment with this timestamp is older than one that has come (`PAWS`).
    #[inline(always)]
    pub fn is_outdated(&self, value: u32, now: Time) -> bool {
        is_before(value, self.recent) && self.is_valid(now)
    }

    /// Whether the last timestamp that has come still says something.
    #[cold]
    #[inline(never)]
    fn is_valid(&self, now: Time) -> bool {
        ((now >> UNIT) as u32).wrapping_sub(self.recent_at) <= (LIFE >> UNIT) as u32
    }

    /// Whether a timestamp is later than the last one that has come, and that still says something.
    pub fn is_newer(&self, value: u32, now: Time) -> bool {
        is_before(self.recent, value) && self.is_valid(now)
    }

    /// Returns the time since this side has told a timestamp; `None` if it never has. Zero is that of others who have
    /// none to tell back.
    pub(crate) fn time_since(&self, echo: u32, now: Time) -> Option<Time> {
        let ticks = self.clock(now).wrapping_sub(echo);
        (echo != 0 && ticks as i32 >= 0).then(|| Time::from(ticks.max(1)) * TICK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Time = 24 * 3600 * 1_000_000;

    #[test]
    fn the_clock_ticks_from_a_secret_offset_and_wraps_around() {
        let stamps = Stamps::new(u32::MAX - 1).with(77, 0);
        assert_eq!([0, 999, 1000, 2000].map(|now| stamps.told(now).0), [u32::MAX - 1, u32::MAX - 1, u32::MAX, 0]);
        assert_eq!(stamps.told(5).1, 77);
        assert_eq!(stamps.time_since(u32::MAX - 1, 5000), Some(5000));
        assert_eq!(stamps.time_since(u32::MAX, 1999), Some(1000), "less than a tick");
        assert_eq!([stamps.time_since(0, 5000), stamps.time_since(9, 5000)], [None; 2], "none, and one of the future");
    }

    #[test]
    fn timestamps_are_compared_by_their_distance_while_the_last_one_counts() {
        for recent in [0, 5, u32::MAX, 1 << 31] {
            let stamps = Stamps::new(1).with(recent, 100 * DAY);
            for (step, is_outdated) in [(0, false), (1, false), (i32::MAX, false), (-1, true), (-i32::MAX, true)] {
                let value = recent.wrapping_add_signed(step);
                assert_eq!(stamps.is_outdated(value, 100 * DAY), is_outdated, "{recent} and {step}");
                assert_eq!(stamps.is_outdated(value, 123 * DAY), is_outdated, "{recent} and {step}");
                assert!(!stamps.is_outdated(value, 125 * DAY));
                assert_eq!(stamps.is_newer(value, 123 * DAY), step > 0);
                assert!(!stamps.is_newer(value, 125 * DAY));
            }
        }
    }
}
