//! Allocations that fail on purpose, in a kernel that is built to test itself (feature `fail-allocations`).
//!
//! A kernel meets a failed allocation only when memory is nearly gone, which a test reaches slowly and in one of many
//! places. Here a test chooses the allocation that fails: the n-th of those made for one process from now on, once. It
//! repeats a call with n = 1, 2, 3, ... until the call comes to its end without meeting the n-th, and so has seen every
//! allocation of the call fail.
//!
//! # Allocations that may fail
//! Frames, runs of frames, pages of programs, memory that is [kept](crate::heap::Kept), charges and admission may fail
//! at any time, and so may allocations of more than a frame. A smaller allocation may not after the call was admitted
//! ([`admitted`]): admission has seen a reserve for it. The reserve lasts until the admitted call gives the hart away,
//! since others may use memory up meanwhile, and for a limited number of bytes. Code that allocates from memory which
//! was kept free for it declares that ([`from_what_is_kept`]).
//!
//! So a small allocation without admission fails too, and a caller that cannot bear that makes the kernel panic: it has
//! relied on memory that was never promised.
//!
//! Without the feature all functions here are empty, and the compiler removes them.

#[cfg(not(feature = "fail-allocations"))]
mod never {
    /// See the version with the feature.
    #[inline(always)]
    pub fn works_for(_process: u32) {}

    /// See the version with the feature.
    #[inline(always)]
    pub fn admitted() {}

    /// Makes allocations from memory that was kept free for them, and which therefore do not fail.
    #[inline(always)]
    pub fn from_what_is_kept<R>(allocate: impl FnOnce() -> R) -> R {
        allocate()
    }

    /// Whether the present allocation is to fail.
    #[inline(always)]
    #[must_use]
    pub fn fails() -> bool {
        false
    }

    #[inline(always)]
    pub(crate) fn fails_small(_bytes: usize) -> bool {
        false
    }
}

// Its tests run without the feature, too.
#[cfg(any(feature = "fail-allocations", test))]
#[cfg_attr(not(feature = "fail-allocations"), allow(dead_code))]
mod chosen {
    use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

    use crate::MAX_HARTS;
    use crate::hart::{CurrentHart as _, Registered};

    /// Maximum bytes of small allocations that one hart makes after an admission: its share of the memory that large
    /// allocations leave to small ones.
    const GOOD_FOR: usize = 32 * 1024;

    /// Process whose allocations fail; 0: none.
    static PROCESS: AtomicU32 = AtomicU32::new(0);
    /// Allocations until the one that fails, that one included; 0 when it has failed.
    static LEFT: AtomicUsize = AtomicUsize::new(0);
    /// Allocations that could have failed since the last [`arm`].
    static MET: AtomicUsize = AtomicUsize::new(0);

    /// State of a hart.
    struct Hart {
        process: AtomicU32,
        /// Bytes left of an admission.
        promised: AtomicUsize,
    }

    static HARTS: [Hart; MAX_HARTS] =
        [const { Hart { process: AtomicU32::new(0), promised: AtomicUsize::new(0) } }; MAX_HARTS];

    fn here() -> &'static Hart {
        &HARTS[Registered::current() % MAX_HARTS]
    }

    /// Sets the process for which this hart works from now on (0: none). An earlier admission ends.
    #[inline]
    pub fn works_for(process: u32) {
        let hart = here();
        hart.process.store(process, Relaxed);
        hart.promised.store(0, Relaxed);
    }

    /// Promises that small allocations cannot fail for now: there is a reserve for them.
    #[inline]
    pub fn admitted() {
        here().promised.store(GOOD_FOR, Relaxed);
    }

    /// Makes allocations from memory that was kept free for them, and which therefore do not fail.
    pub fn from_what_is_kept<R>(allocate: impl FnOnce() -> R) -> R {
        let hart = here();
        let before = hart.promised.swap(GOOD_FOR, Relaxed);
        let result = allocate();
        hart.promised.store(before, Relaxed);
        result
    }

    /// Makes the `nth` allocation for `process` from now on fail, once; 0 stands for none of them. Returns the number
    /// of allocations that could have failed since the last call.
    pub fn arm(process: u32, nth: usize) -> usize {
        PROCESS.store(process, Relaxed);
        LEFT.store(nth, Relaxed);
        MET.swap(0, Relaxed)
    }

    /// Whether the present allocation is to fail.
    #[inline]
    #[must_use]
    pub fn fails() -> bool {
        let process = PROCESS.load(Relaxed);
        process != 0 && here().process.load(Relaxed) == process && count_down()
    }

    #[cold]
    fn count_down() -> bool {
        MET.fetch_add(1, Relaxed);
        LEFT.try_update(Relaxed, Relaxed, |left| left.checked_sub(1)) == Ok(1)
    }

    #[inline]
    pub(crate) fn fails_small(bytes: usize) -> bool {
        let promised = &here().promised;
        match promised.load(Relaxed).checked_sub(bytes) {
            Some(left) => {
                promised.store(left, Relaxed);
                false
            }
            None => fails(),
        }
    }
}

#[cfg(feature = "fail-allocations")]
use chosen as selected;
#[cfg(not(feature = "fail-allocations"))]
use never as selected;

#[cfg(feature = "fail-allocations")]
pub use chosen::arm;
pub(crate) use selected::fails_small;
pub use selected::{admitted, fails, from_what_is_kept, works_for};

#[cfg(test)]
mod tests {
    use super::chosen::{admitted, arm, fails, fails_small, from_what_is_kept, works_for};
    use crate::fake;

    /// Returns the place of the first of some small allocations that fails.
    fn first_failure(bytes: usize) -> Option<usize> {
        (0..100).find(|_| fails_small(bytes))
    }

    #[test]
    fn the_chosen_allocation_of_the_chosen_process_fails_once() {
        fake::init(1 << 20);
        fake::set_hart(5);
        // No process is chosen, and none has the number 0.
        works_for(0);
        arm(0, 1);
        assert!(!fails() && !fails_small(1));
        // Another process.
        works_for(8);
        arm(7, 1);
        assert!(!fails() && !fails_small(1));
        assert_eq!(arm(7, 3), 0);
        works_for(7);
        assert_eq!([fails(), fails_small(1), fails(), fails(), fails_small(1)], [false, false, true, false, false]);
        assert_eq!(arm(7, 0), 5);
        assert_eq!([fails(), fails()], [false; 2]);
        assert_eq!(arm(7, 1), 2);
        // An admission is good for 32 KiB of small allocations of this hart, and ends with the work.
        admitted();
        assert_eq!(first_failure(1000), Some(32));
        for work in [7, 7] {
            admitted();
            arm(7, 1);
            assert!(!fails_small(32 << 10) && fails_small(1));
            admitted();
            arm(7, 1);
            works_for(work);
            assert!(fails_small(1));
        }
        // Large ones fail in spite of it.
        admitted();
        arm(7, 1);
        assert!(fails());
        // Kept memory does not; afterwards the admission is as before.
        works_for(7);
        arm(7, 1);
        assert_eq!(from_what_is_kept(|| first_failure(300)), None);
        assert!(fails_small(1));
        admitted();
        assert!(!fails_small(32 << 10));
        arm(7, 1);
        assert!(!from_what_is_kept(|| fails_small(1)) && fails_small(1));
        // Harts differ.
        admitted();
        fake::set_hart(6);
        arm(7, 1);
        assert!(!fails());
        works_for(7);
        assert!(fails_small(1));
        arm(7, 1);
        fake::set_hart(5);
        assert!(!fails_small(1) && fails());
        works_for(0);
        fake::set_hart(6);
        works_for(0);
        arm(0, 0);
    }
}
