//! References to objects.

use core::fmt;
use core::marker::PhantomData;
use core::num::NonZeroU32;
use core::ops::Deref;

use crate::memory;

/// A reference to a kernel object: its physical address in units of 16 bytes, the smallest object.
///
/// A reference has four bytes, so that a capability fits into two words and a slot into four, and a thread's links are
/// small. 32 bits of such units cover the machine's direct map.
pub struct Ref<T>(NonZeroU32, PhantomData<*const T>);

/// Size of a unit in bytes.
pub(crate) const UNIT: u64 = 16;

// SAFETY: references move between harts with the kernel's lock only (ONE-HART).
unsafe impl<T> Send for Ref<T> {}

impl<T> Clone for Ref<T> {
    #[inline(always)]
    fn clone(&self) -> Ref<T> {
        *self
    }
}
impl<T> Copy for Ref<T> {}
impl<T> PartialEq for Ref<T> {
    #[inline(always)]
    fn eq(&self, other: &Ref<T>) -> bool {
        self.0 == other.0
    }
}
impl<T> Eq for Ref<T> {}

impl<T> fmt::Debug for Ref<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "object at {:#x}", self.physical())
    }
}

impl<T> Ref<T> {
    /// Returns the reference with this number from [`raw`](Ref::raw); `None` for 0.
    #[inline(always)]
    pub(crate) fn from_raw(raw: u32) -> Option<Ref<T>> {
        NonZeroU32::new(raw).map(|raw| Ref(raw, PhantomData))
    }

    /// Returns the reference as a number that is not 0.
    #[inline(always)]
    pub fn raw(self) -> u32 {
        self.0.get()
    }

    /// Returns the object's physical address.
    #[inline(always)]
    pub fn physical(self) -> u64 {
        u64::from(self.0.get()) * UNIT
    }

    /// Returns the reference to an object from a Rust reference to it, for example as a part of another object.
    #[inline(always)]
    pub fn of(object: &T) -> Ref<T> {
        let physical = memory::physical_of(object);
        Ref::from_raw((physical / UNIT) as u32).expect("no object is at address 0")
    }

    /// Returns the object this many units of memory behind this object.
    #[inline(always)]
    pub(crate) fn further(self, units: u32) -> Ref<T> {
        Ref(self.0.saturating_add(units), PhantomData)
    }

    #[inline(always)]
    fn pointer(self) -> *const T {
        memory::pointer(self.physical()).cast()
    }
}

impl<T> Deref for Ref<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: LIVE-OBJECT: an object of this kind is at the address, whose bounds and alignment `claim` has
        // checked; its parts are cells and atomics, for which every bit pattern is valid (PLAIN), and no other hart
        // accesses it (ONE-HART).
        unsafe { &*self.pointer() }
    }
}

impl Ref<crate::Slot> {
    /// Returns the slot `index` places further in the same CNode.
    #[inline(always)]
    pub fn slot(self, index: u64) -> Ref<crate::Slot> {
        let units = index as u32 * (size_of::<crate::Slot>() as u64 / UNIT) as u32;
        Ref(self.0.saturating_add(units), PhantomData)
    }
}

impl Ref<crate::Slot> {
    /// Returns this slot and those behind it, `count` in all, which must be slots of one CNode.
    #[inline(always)]
    pub fn row(&self, count: u64) -> &[crate::Slot] {
        // SAFETY: LIVE-OBJECT: a CNode's slots lie in a row, and the caller guarantees their number; otherwise as in
        // `deref`.
        unsafe { core::slice::from_raw_parts(self.pointer(), count as usize) }
    }

    /// As [`slot`](Ref::slot), from the first slot of a CNode. CNodes are aligned to their size, so an OR replaces the
    /// addition.
    #[inline(always)]
    pub fn in_node(self, index: u64) -> Ref<crate::Slot> {
        let units = index as u32 * (size_of::<crate::Slot>() as u64 / UNIT) as u32;
        debug_assert_eq!(self.0.get() & units, 0, "a node is not aligned");
        Ref(self.0 | units, PhantomData)
    }
}

impl Ref<crate::Words> {
    /// Returns the kilobyte `index` places further in the same frame.
    #[inline(always)]
    pub fn kilobyte(self, index: u64) -> Ref<crate::Words> {
        let units = index as u32 * (size_of::<crate::Words>() as u64 / UNIT) as u32;
        Ref(self.0.saturating_add(units), PhantomData)
    }
}

impl Ref<crate::Tcb> {
    /// Returns one of the thread's own slots.
    #[inline(always)]
    pub fn own_slot(self, index: usize) -> Ref<crate::Slot> {
        // A thread begins with its slots, and its alignment is larger than their size.
        Ref::<crate::Slot>(self.0, PhantomData).in_node(index as u64)
    }
}
