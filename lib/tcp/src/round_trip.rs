//! The time that the other side takes to answer, and how long to wait for it (RFC 6298).

use crate::Time;

/// Time to wait before the first measurement.
const INITIAL: Time = 1_000_000;
/// Shortest and longest wait, as on Linux.
pub(crate) const SHORTEST: Time = 200_000;
const LONGEST: Time = 120_000_000;
/// Number of doubtful times, one after the other, that are believed.
const DOUBTS: u8 = 6;

#[derive(Debug)]
pub(crate) struct RoundTrip {
    /// Eight times the smoothed time; 0 before the first measurement.
    smoothed: u64,
    /// Four times its variation.
    variation: u64,
    /// Number of times that the wait has been doubled.
    doublings: u8,
    /// Number of doubtful times since the last measurement.
    doubts: u8,
}

impl RoundTrip {
    pub(crate) const NEW: RoundTrip = RoundTrip { smoothed: 0, variation: 0, doublings: 0, doubts: 0 };

    /// Takes a measurement into account.
    pub(crate) fn measure(&mut self, time: Time) {
        self.doubts = 0;
        let time = time.clamp(1, LONGEST);
        if self.smoothed == 0 {
            (self.smoothed, self.variation) = (time * 8, time * 2);
            return;
        }
        let difference = time.abs_diff(self.smoothed / 8);
        self.variation = self.variation - self.variation / 4 + difference;
        self.smoothed = self.smoothed - self.smoothed / 8 + time;
    }

    /// Takes a time into account that may be one of this side's waits. Few of them say nothing: on a way that loses
    /// acknowledgements each wait would make the next ones longer. But if one after the other is such, the waits are
    /// too short for the way.
    pub(crate) fn measure_in_doubt(&mut self, time: Time) {
        self.doubts += 1;
        if self.smoothed == 0 || self.doubts >= DOUBTS {
            self.measure(time);
        }
    }

    /// Returns the variation of the time.
    pub(crate) fn variation(&self) -> Time {
        self.variation / 4
    }

    /// Returns how many times the wait has been doubled.
    pub(crate) fn doublings(&self) -> u8 {
        self.doublings
    }

    /// Returns the smoothed time, if one was measured.
    pub(crate) fn smoothed(&self) -> Time {
        self.smoothed / 8
    }

    /// Returns how long to wait for an acknowledgement.
    pub(crate) fn timeout(&self) -> Time {
        let once = if self.smoothed == 0 {
            INITIAL
        } else {
            (self.smoothed / 8 + self.variation.max(1000)).clamp(SHORTEST, LONGEST)
        };
        (once << self.doublings.min(10)).min(LONGEST)
    }

    /// Doubles the wait.
    pub(crate) fn back_off(&mut self) {
        self.doublings = self.doublings.saturating_add(1);
    }

    /// Ends the doubling: the other side has answered.
    #[inline(always)]
    pub(crate) fn has_answered(&mut self) {
        self.doublings = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_follows_the_measurements() {
        let mut trip = RoundTrip::NEW;
        assert_eq!(trip.timeout(), INITIAL);
        trip.measure(100_000);
        // Once the time and four times its variation, half of it.
        assert_eq!((trip.smoothed(), trip.timeout()), (100_000, 300_000));
        for _ in 0..100 {
            trip.measure(100_000);
        }
        assert_eq!((trip.smoothed(), trip.timeout()), (100_000, SHORTEST));
        for _ in 0..100 {
            trip.measure(400_000);
        }
        assert!((399_000..=400_000).contains(&trip.smoothed()) && (400_000..410_000).contains(&trip.timeout()));
        trip.back_off();
        trip.back_off();
        assert!((1_600_000..1_640_000).contains(&trip.timeout()));
        (0..300).for_each(|_| trip.back_off());
        assert_eq!(trip.timeout(), LONGEST);
        trip.has_answered();
        assert!(trip.timeout() < 410_000);
        trip.measure(u64::MAX);
        trip.measure(0);
        assert!(trip.timeout() <= LONGEST);
    }

    /// Times that may be waits of this side itself lengthen the wait only if all are such.
    #[test]
    fn doubtful_times_do_not_run_away_and_are_believed_in_the_end() {
        let mut trip = RoundTrip::NEW;
        trip.measure_in_doubt(10_000);
        assert_eq!(trip.smoothed(), 10_000, "there is nothing better");
        for _ in 0..1000 {
            (1..DOUBTS).for_each(|_| trip.measure_in_doubt(trip.timeout() * 4));
            trip.measure(10_000);
        }
        assert_eq!((trip.smoothed(), trip.timeout()), (10_000, SHORTEST));
        (0..DOUBTS).for_each(|_| trip.measure_in_doubt(600_000));
        assert!(trip.timeout() > 600_000 && trip.smoothed() < 100_000);
    }
}
