//! Ranges of a stream: what has come ahead of a gap, and what the other side says has come.

/// The largest number of ranges that are kept. The other side can make as many gaps as it likes; what does not fit is
/// dropped and comes again.
pub(crate) const LIMIT: usize = 6;

/// Disjoint ranges that do not touch each other, in order, as offsets from a place that moves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    ranges: [(u32, u32); LIMIT],
    count: u8,
}

impl Ranges {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }

    /// Returns the ranges, each as its start and its end.
    pub(crate) fn as_slice(&self) -> &[(u32, u32)] {
        self.ranges.get(..usize::from(self.count)).unwrap_or(&[])
    }

    /// Returns the number of bytes in all ranges.
    pub(crate) fn total(&self) -> u32 {
        self.as_slice().iter().map(|(start, end)| end - start).sum()
    }

    /// Adds a range. Returns `false`, and changes nothing, if there is no room for it.
    pub(crate) fn add(&mut self, start: u32, end: u32) -> bool {
        if start >= end {
            return true;
        }
        let (mut start, mut end) = (start, end);
        let mut kept = Ranges::default();
        let mut is_added = false;
        for &(first, last) in self.as_slice() {
            if last < start {
                if !kept.push(first, last) {
                    return false;
                }
            } else if first > end {
                if !is_added {
                    is_added = true;
                    if !kept.push(start, end) {
                        return false;
                    }
                }
                if !kept.push(first, last) {
                    return false;
                }
            } else {
                (start, end) = (start.min(first), end.max(last));
            }
        }
        if !is_added && !kept.push(start, end) {
            return false;
        }
        *self = kept;
        true
    }

    fn push(&mut self, start: u32, end: u32) -> bool {
        let Some(place) = self.ranges.get_mut(usize::from(self.count)) else { return false };
        *place = (start, end);
        self.count += 1;
        true
    }

    /// Moves the place from which offsets count forward; what lies before it is forgotten.
    pub(crate) fn advance(&mut self, by: u32) {
        let mut kept = Ranges::default();
        for &(start, end) in self.as_slice() {
            if end > by {
                kept.push(start.saturating_sub(by), end - by);
            }
        }
        *self = kept;
    }

    /// Moves the place from which offsets count behind the range that begins there, and returns the length of that; 0
    /// for none.
    pub(crate) fn take_first(&mut self) -> u32 {
        let Some(&(0, end)) = self.as_slice().first() else { return 0 };
        self.advance(end);
        end
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn ranges_are_a_set_of_bytes(steps in prop::collection::vec((0u8..5, 0u32..60, 0u32..20), 0..60)) {
            let mut ranges = Ranges::default();
            let mut model = [false; 200];
            for (step, start, length) in steps {
                match step {
                    0 => {
                        ranges.advance(start);
                        model.rotate_left(start as usize);
                        model[200 - start as usize..].fill(false);
                    }
                    1 => {
                        let before = ranges.clone();
                        let taken = ranges.take_first() as usize;
                        if taken == 0 {
                            prop_assert!(!model[0] && before == ranges);
                        }
                        prop_assert!(model[..taken].iter().all(|&there| there) && (taken == 0 || !model[taken]));
                        model.rotate_left(taken);
                        model[200 - taken..].fill(false);
                    }
                    _ => {
                        let before = ranges.clone();
                        if ranges.add(start, start + length) {
                            model[start as usize..(start + length) as usize].fill(true);
                        } else {
                            prop_assert_eq!(&ranges, &before);
                            prop_assert_eq!(ranges.as_slice().len(), LIMIT);
                        }
                    }
                }
                let mut there = [false; 200];
                for &(start, end) in ranges.as_slice() {
                    prop_assert!(start < end);
                    there[start as usize..end as usize].fill(true);
                }
                prop_assert_eq!(there, model);
                prop_assert!(ranges.as_slice().windows(2).all(|two| two[0].1 < two[1].0));
                prop_assert_eq!(ranges.total() as usize, model.iter().filter(|&&there| there).count());
            }
        }
    }
}
