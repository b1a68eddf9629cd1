//! How much may be under way: slow start and CUBIC (RFC 5681, RFC 9438), in integers.

use crate::Time;

/// Segments that may be under way at first (RFC 6928).
const INITIAL: u32 = 10;
/// The largest window: no sum of two of them overflows.
const LARGEST: u32 = 1 << 30;
/// CUBIC's factor of a decrease, 0.7.
const DECREASE: (u32, u32) = (7, 10);
/// The growth of a Reno flow that shares as CUBIC does, 3 * 0.3 / 1.7 segments for each round trip, in thousandths.
const FRIENDLY: u64 = 529;
/// Longest time since a loss for which the cubic function is computed, in milliseconds.
const LONGEST: i64 = 100_000;

#[derive(Debug)]
pub(crate) struct Congestion {
    /// Bytes that may be under way.
    window: u32,
    /// Window from which on growth is slow.
    threshold: u32,
    /// Window at the last loss.
    maximum: u32,
    /// Beginning of the growth since the last loss.
    epoch: Option<Time>,
    /// Milliseconds from there until the window is `maximum` again.
    until_maximum: u32,
    /// Window of a Reno flow in the same place.
    friendly: u32,
}

/// Returns the cube root of a number, rounded down.
fn cube_root(value: u64) -> u32 {
    let mut root = 0u64;
    for bit in (0..21).rev() {
        let tried = root | 1 << bit;
        if tried * tried * tried <= value {
            root = tried;
        }
    }
    root as u32
}

impl Congestion {
    pub(crate) fn new(segment: u32) -> Congestion {
        let window = INITIAL.saturating_mul(segment).min(LARGEST);
        Congestion { window, threshold: LARGEST, maximum: 0, epoch: None, until_maximum: 0, friendly: 0 }
    }

    #[inline(always)]
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// Returns the window from which on growth is slow.
    pub(crate) fn threshold(&self) -> u32 {
        self.threshold
    }

    /// Takes into account that so many bytes more have arrived, while the window limited what was under way.
    pub(crate) fn grow(&mut self, bytes: u32, segment: u32, round_trip: Time, now: Time) {
        let segment = segment.max(1);
        if self.window < self.threshold {
            // All of them, although that may send many at once (RFC 9406, section 4.2): a receiver that takes many in
            // together acknowledges them together, and two segments for each acknowledgement would be no doubling.
            self.window = (self.window + bytes).min(self.threshold).min(LARGEST);
            return;
        }
        let epoch = match self.epoch {
            Some(epoch) => epoch,
            None => {
                self.epoch = Some(now);
                self.friendly = self.window;
                let missing = u64::from(self.maximum.saturating_sub(self.window) / segment);
                self.until_maximum = cube_root((missing * 2_500_000_000).min(1 << 62));
                self.maximum = self.maximum.max(self.window);
                now
            }
        };
        let time = (now.saturating_sub(epoch) + round_trip) / 1000;
        let distance = (time.min(LONGEST as u64) as i64 - i64::from(self.until_maximum)).clamp(-LONGEST, LONGEST);
        // 0.4 segments for each cubic second.
        let growth = distance.pow(3) / 1_000_000 * 4 * i64::from(segment) / 10_000;
        let most = i64::from(self.window) + i64::from(self.window) / 2;
        let target = (i64::from(self.maximum) + growth).clamp(i64::from(self.window), most);
        let step = (target - i64::from(self.window)) * i64::from(bytes) / i64::from(self.window.max(1));
        let friendly = u64::from(bytes) * u64::from(segment) * FRIENDLY / 1000 / u64::from(self.window.max(1));
        self.friendly = self.friendly.saturating_add(friendly as u32).min(LARGEST);
        self.window = (self.window + step.clamp(0, i64::from(LARGEST)) as u32).max(self.friendly).min(LARGEST);
    }

    /// Takes a loss into account.
    pub(crate) fn lose(&mut self, segment: u32) {
        // A flow that loses before it is as wide as the last time makes room for new ones.
        self.maximum = if self.window < self.maximum { self.window / 20 * 17 } else { self.window };
        self.threshold = (self.window / DECREASE.1 * DECREASE.0).max(2 * segment);
        self.window = self.threshold;
        self.epoch = None;
    }

    /// Takes into account that nothing was heard in time.
    pub(crate) fn time_out(&mut self, segment: u32) {
        self.lose(segment);
        self.window = segment;
    }

    /// Begins with one segment again, and keeps what was learnt.
    pub(crate) fn begin_anew(&mut self, segment: u32) {
        self.window = segment;
        self.epoch = None;
    }

    /// Takes into account that nothing was sent for long: what the window says about the network is old.
    pub(crate) fn rest(&mut self, segment: u32) {
        self.window = self.window.min(INITIAL.saturating_mul(segment));
        self.epoch = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u32 = 1000;

    /// Lets the window grow for so many round trips of 100 ms.
    fn rounds(congestion: &mut Congestion, now: &mut Time, count: u32) {
        for _ in 0..count {
            let window = congestion.window();
            for _ in 0..window / SEGMENT {
                congestion.grow(SEGMENT, SEGMENT, 100_000, *now);
            }
            *now += 100_000;
        }
    }

    #[test]
    fn the_window_doubles_until_a_loss_and_comes_back_slowly() {
        let mut congestion = Congestion::new(SEGMENT);
        assert_eq!(congestion.window(), 10 * SEGMENT);
        let mut now = 5_000_000;
        rounds(&mut congestion, &mut now, 4);
        assert_eq!(congestion.window(), 160 * SEGMENT);
        congestion.lose(SEGMENT);
        assert_eq!(congestion.window(), 112 * SEGMENT);
        // The cube root of (48 / 0.4) is 4.9 seconds; shortly before that the window is nearly flat.
        rounds(&mut congestion, &mut now, 45);
        let near = congestion.window();
        assert!((155 * SEGMENT..=161 * SEGMENT).contains(&near), "{near}");
        rounds(&mut congestion, &mut now, 10);
        assert!(congestion.window() < near + 4 * SEGMENT);
        // After that it looks for more, and quicker and quicker.
        rounds(&mut congestion, &mut now, 50);
        assert!(congestion.window() > 200 * SEGMENT, "{}", congestion.window());
    }

    #[test]
    fn a_timeout_begins_anew_and_idling_forgets() {
        let mut congestion = Congestion::new(SEGMENT);
        let mut now = 0;
        rounds(&mut congestion, &mut now, 5);
        congestion.time_out(SEGMENT);
        assert_eq!(congestion.window(), SEGMENT);
        rounds(&mut congestion, &mut now, 7);
        assert!(congestion.window() >= 100 * SEGMENT);
        congestion.rest(SEGMENT);
        assert_eq!(congestion.window(), 10 * SEGMENT);
    }

    #[test]
    fn no_value_overflows() {
        for segment in [1, 536, 65_495] {
            let mut congestion = Congestion::new(segment);
            for step in 0..2000u64 {
                congestion.grow(u32::MAX >> 2, segment, step << 30, step << 40);
                match step % 97 {
                    3 => congestion.lose(segment),
                    5 => congestion.time_out(segment),
                    _ => {}
                }
                assert!((segment..=LARGEST).contains(&congestion.window()));
            }
        }
        assert_eq!([0, 1, 7, 8, 26, 27, 1_000_000_000, 1 << 60].map(cube_root), [0, 1, 1, 2, 2, 3, 1000, 1 << 20]);
    }
}
