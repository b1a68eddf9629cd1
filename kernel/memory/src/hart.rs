//! One value for each hart, without locks that are ever waited for.
//!
//! The allocators keep a small cache for each hart, so that harts do not meet on one lock. By the invariant HART-LOCAL
//! a plain cell would do: kernel code on a hart is neither interrupted nor moved. But "a plain cell" makes memory
//! safety depend on every scheduler, trap handler and test that might pass the wrong index. So each value has a
//! *claim*: one atomic swap takes it, one store gives it back. When HART-LOCAL holds, the claim always succeeds and
//! costs a handful of instructions on a cache line that the hart owns anyway; when it is broken the claim fails and the
//! caller takes the shared, locked path. A wrong index costs time, never memory. As a bonus, any hart can claim the
//! caches of the others to collect their contents when memory runs out.
//!
//! Rejected: `UnsafeCell` with an unsafe contract (saves four instructions, and puts the proof into other crates),
//! and a spin lock (a nested call would hang instead of taking the slow path).

use crate::MAX_HARTS;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Source of the index of the current hart, `0..`[`MAX_HARTS`].
///
/// A wrong answer makes the allocators slower and does nothing else.
#[doc(alias = "smp_processor_id")]
pub trait CurrentHart: 'static {
    /// Returns the index of the hart that executes this call.
    fn current() -> usize;
}

/// The hart index from the function given to [`frames::init`](crate::frames::init).
///
/// A kernel for which the last few instructions count implements [`CurrentHart`] itself, so that the call is inlined.
#[derive(Debug)]
pub struct Registered;

// A pointer to code, behind which nothing was written: relaxed loads suffice.
static CURRENT: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

pub(crate) fn register(current_hart: fn() -> usize) {
    CURRENT.store(current_hart as *mut (), Ordering::Release);
}

impl CurrentHart for Registered {
    #[inline]
    fn current() -> usize {
        let current = CURRENT.load(Ordering::Relaxed);
        if current.is_null() {
            return 0;
        }
        // SAFETY: the only value besides null that is ever stored is a `fn() -> usize` (in `register`).
        let current: fn() -> usize = unsafe { core::mem::transmute(current) };
        current()
    }
}

/// One `T` for each hart.
pub(crate) struct HartLocal<T> {
    slots: [Slot<T>; MAX_HARTS],
}

/// A value on cache lines of its own, so that one hart's claims do not slow another's. The claim comes first, where no
/// offset needs to be added.
#[repr(C, align(64))]
pub(crate) struct Slot<T> {
    /// 1 while a [`Claim`] exists.
    claimed: AtomicU32,
    value: UnsafeCell<T>,
}

const _: () = assert!(MAX_HARTS.is_power_of_two());

impl<T> Slot<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { claimed: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }
}

// SAFETY: `value` is reached only through a `Claim`, and `claimed` lets at most one exist at a time; so sharing the
// slot moves exclusive access to `T` from hart to hart, as `T: Send` permits.
unsafe impl<T: Send> Sync for Slot<T> {}

impl<T> HartLocal<T> {
    pub(crate) const fn new(slots: [Slot<T>; MAX_HARTS]) -> Self {
        Self { slots }
    }

    /// Claims the value of `hart` exclusively; `None` if it is claimed already. A hart that cannot exist shares the
    /// value of another.
    #[inline(always)]
    pub(crate) fn claim(&self, hart: usize) -> Option<Claim<'_, T>> {
        let slot = &self.slots[hart % MAX_HARTS];
        // Acquire pairs with the release in `Claim::drop`: the last holder's accesses are visible to this one.
        if slot.claimed.swap(1, Ordering::Acquire) == 0 { Some(Claim { slot }) } else { None }
    }

    /// Visits each value in turn with exclusive access, waiting for those that are claimed. For collecting and
    /// counting; the caller must hold no claim of this `HartLocal`.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&mut T)) {
        for hart in 0..MAX_HARTS {
            let mut claim = loop {
                match self.claim(hart) {
                    Some(claim) => break claim,
                    None => core::hint::spin_loop(),
                }
            };
            visit(&mut claim);
        }
    }
}

/// Exclusive access to a hart's value.
pub(crate) struct Claim<'a, T> {
    slot: &'a Slot<T>,
}

impl<T> Deref for Claim<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this claim is the only one (see `claim`), and it is borrowed shared.
        unsafe { &*self.slot.value.get() }
    }
}

impl<T> DerefMut for Claim<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this claim is the only one (see `claim`), and it is borrowed exclusively.
        unsafe { &mut *self.slot.value.get() }
    }
}

impl<T> Drop for Claim<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.slot.claimed.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_claimed_once_at_a_time() {
        let values = HartLocal::new([const { Slot::new(0u32) }; MAX_HARTS]);
        let mut claim = values.claim(0).expect("free");
        *claim += 1;
        assert!(values.claim(0).is_none());
        assert!(values.claim(1).is_some());
        drop(claim);
        assert_eq!(*values.claim(0).expect("free again"), 1);
        let wrapped = values.claim(MAX_HARTS).expect("free");
        assert_eq!(*wrapped, 1);
        assert!(values.claim(0).is_none());
    }

    #[test]
    fn two_threads_on_one_index_never_meet() {
        static COUNT: HartLocal<u64> = HartLocal::new([const { Slot::new(0) }; MAX_HARTS]);
        let mut taken = 0;
        std::thread::scope(|scope| {
            let work = || {
                let mut taken = 0u64;
                for _ in 0..100_000 {
                    if let Some(mut claim) = COUNT.claim(3) {
                        *claim += 1;
                        taken += 1;
                    }
                }
                taken
            };
            let threads = [scope.spawn(work), scope.spawn(work)];
            for thread in threads {
                taken += thread.join().expect("no panic");
            }
        });
        assert_eq!(*COUNT.claim(3).expect("free"), taken);
    }
}
