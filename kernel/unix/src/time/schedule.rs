//! The expirations of one timer: the next one, and those after it at an interval.
//!
//! A schedule knows no clock: its user tells it the present time of the clock that the timer counts. Expirations are
//! counted when its user looks, however late, so that none is lost and none needs anything while nobody looks.

use abi_unix::types::timer::Setting;

/// The expirations of a timer, at times of its clock in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// Time of the next expiration; 0 for none.
    next_ns: u64,
    interval_ns: u64,
}

impl Schedule {
    /// A timer that is not set.
    pub(crate) const NONE: Schedule = Schedule { next_ns: 0, interval_ns: 0 };

    /// Makes a schedule of a setting whose time begins now.
    pub(crate) fn after(setting: Setting, now_ns: u64) -> Schedule {
        let next_ns = if setting.value_ns == 0 { 0 } else { now_ns.saturating_add(setting.value_ns) };
        Schedule { next_ns, interval_ns: setting.interval_ns }
    }

    /// Makes a schedule of a setting whose time is absolute, on a clock that is this much ahead.
    pub(crate) fn at(setting: Setting, ahead_ns: u64) -> Schedule {
        // A time that has passed is no absent one.
        let next_ns = if setting.value_ns == 0 { 0 } else { setting.value_ns.saturating_sub(ahead_ns).max(1) };
        Schedule { next_ns, interval_ns: setting.interval_ns }
    }

    /// Returns the time of the next expiration that was not counted.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        (self.next_ns != 0).then_some(self.next_ns)
    }

    /// Returns what is left of it. A time that has come and was not counted is the shortest one.
    pub(crate) fn left(&self, now_ns: u64) -> Setting {
        let value_ns = if self.next_ns == 0 { 0 } else { self.next_ns.saturating_sub(now_ns).max(1) };
        Setting { value_ns, interval_ns: self.interval_ns }
    }

    /// Counts the expirations up to now since the last look, and goes on behind them.
    pub(crate) fn expirations(&mut self, now_ns: u64) -> u64 {
        if self.next_ns == 0 || now_ns < self.next_ns {
            return 0;
        }
        if self.interval_ns == 0 {
            self.next_ns = 0;
            return 1;
        }
        let count = (now_ns - self.next_ns) / self.interval_ns + 1;
        self.next_ns = self.next_ns.saturating_add(count.saturating_mul(self.interval_ns));
        count
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_setting_without_a_time_never_expires() {
        for schedule in [
            Schedule::default(),
            Schedule::after(Setting { value_ns: 0, interval_ns: 5 }, 100),
            Schedule::at(Setting { value_ns: 0, interval_ns: 5 }, 100),
        ] {
            let mut schedule = schedule;
            assert_eq!((schedule.next_ns(), schedule.expirations(u64::MAX)), (None, 0));
            assert_eq!(schedule.left(u64::MAX).value_ns, 0);
        }
    }

    #[test]
    fn an_absolute_time_that_has_passed_expires_at_once() {
        let mut schedule = Schedule::at(Setting { value_ns: 10, interval_ns: 0 }, 1000);
        assert_eq!(schedule.left(500).value_ns, 1);
        assert_eq!((schedule.expirations(500), schedule.expirations(600)), (1, 0));
        assert_eq!(schedule.left(500), Setting::default());
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// However often its user looks, the numbers add up to those of a list of times.
        #[test]
        fn expirations_are_counted_once(
            value_ns in 1u64..1000,
            interval_ns in prop_oneof![Just(0u64), 1u64..300],
            looks in prop::collection::vec(0u64..700, 0..12),
        ) {
            let mut schedule = Schedule::after(Setting { value_ns, interval_ns }, 50);
            let (mut now, mut counted) = (50, 0);
            for step in looks {
                now += step;
                counted += schedule.expirations(now);
                let times = (0..).map(|number| 50 + value_ns + number * interval_ns);
                let expected = times.take(if interval_ns == 0 { 1 } else { 20_000 }).take_while(|at| *at <= now).count();
                prop_assert_eq!(counted, expected as u64);
                if let Some(next) = schedule.next_ns() {
                    prop_assert!(next > now);
                    prop_assert_eq!(schedule.left(now), Setting { value_ns: next - now, interval_ns });
                }
            }
        }
    }
}
