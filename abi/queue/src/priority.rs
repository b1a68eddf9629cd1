//! Priorities, and the words in which ready sets are published.

use core::sync::atomic::AtomicU64;

/// Number of priorities.
pub const PRIORITIES: usize = 64;
/// Number of workers that an executor can have.
pub const MAXIMUM_WORKERS: usize = 8;

/// Importance of a coroutine: 0 is the most important, 63 the least.
///
/// There is no `Ord`, because "greater" would mean "less important"; write
/// [`is_more_important_than`](Priority::is_more_important_than).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Priority(u8);

impl Priority {
    /// The most important.
    pub const HIGHEST: Priority = Priority(0);
    /// The least important.
    pub const LOWEST: Priority = Priority(PRIORITIES as u8 - 1);
    /// Default priority of a coroutine: the middle of the eight priorities that the papers use.
    pub const DEFAULT: Priority = Priority(4);

    /// Returns the priority with this number; `None` from 64 on.
    pub const fn new(number: u8) -> Option<Priority> {
        if number < PRIORITIES as u8 { Some(Priority(number)) } else { None }
    }

    /// Returns the priority with this number, or the least important one if the number is too large.
    pub const fn saturating(number: u64) -> Priority {
        if number < PRIORITIES as u64 { Priority(number as u8) } else { Priority::LOWEST }
    }

    /// Returns the most important priority in a ready bitmap; `None` if it is empty.
    pub const fn most_important_in(bitmap: u64) -> Option<Priority> {
        if bitmap == 0 { None } else { Some(Priority(bitmap.trailing_zeros() as u8)) }
    }

    /// Returns its number, 0 to 63.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Returns its bit in a ready bitmap.
    pub const fn bit(self) -> u64 {
        1 << self.0
    }

    /// Whether it goes before `other`.
    pub const fn is_more_important_than(self, other: Priority) -> bool {
        self.0 < other.0
    }

    /// Returns the less important of two: the effective part of a claim under a ceiling.
    pub const fn limited_to(self, ceiling: Priority) -> Priority {
        if ceiling.0 > self.0 { ceiling } else { self }
    }
}

impl Default for Priority {
    fn default() -> Self {
        Priority::DEFAULT
    }
}

/// Work of one worker's shard, on a cache line of its own: written mostly by that worker, read by all.
///
/// Field 0 is the *ready* bitmap: bit `p` is set while a coroutine of priority `p` is ready. Field 1 is the *running*
/// word: the one bit of the priority that the worker polls right now, 0 outside a poll. A running coroutine is in no
/// ready list; without the second word a worker interrupted in its only coroutine would seem idle to a reader.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ReadyWord(pub AtomicU64, pub AtomicU64);

impl ReadyWord {
    /// Makes a word without ready or running coroutines.
    pub const fn new() -> ReadyWord {
        ReadyWord(AtomicU64::new(0), AtomicU64::new(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_the_most_important() {
        assert!(Priority::HIGHEST.is_more_important_than(Priority::LOWEST));
        assert!(!Priority::DEFAULT.is_more_important_than(Priority::DEFAULT));
        assert_eq!(Priority::most_important_in(0b1010_0000), Priority::new(5));
        assert_eq!(Priority::most_important_in(0), None);
        assert_eq!(Priority::new(64), None);
        assert_eq!(Priority::HIGHEST.limited_to(Priority::DEFAULT), Priority::DEFAULT);
        assert_eq!(Priority::LOWEST.limited_to(Priority::DEFAULT), Priority::LOWEST);
    }
}
