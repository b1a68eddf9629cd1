//! Slots and memory: the places for capabilities, and the untyped memory that objects are made of.
//!
//! The kernel keeps a watermark in each untyped memory: objects are cut off one after the other, each aligned to its
//! size, and only revoking the whole memory gives it back. [`Arena`] repeats that arithmetic, so that a program can
//! compute beforehand whether an object fits and its address, and never has to interpret the kernel's refusal.
//! [`Allocator`] chooses among the arenas that the boot information lists: the fullest that still fits, so that large
//! memories stay whole for large objects.
//!
//! Objects are not freed one by one. A temporary part of a program allocates one untyped memory with
//! [`Allocator::memory`], makes its objects of that, and revokes it at its end.

use abi_sel4::configuration::MAXIMUM_BOOT_UNTYPEDS;
use abi_sel4::{Error, ObjectType, SlotRegion};

use crate::boot::BootInformation;
use crate::capability::{Slot, Untyped, initial};
use crate::raw::{Failure, Result};

/// Consecutive empty slots of the initial CNode.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    next: u64,
    end: u64,
}

impl Slots {
    /// Creates a range of these slots, which have to be empty.
    pub const fn new(region: SlotRegion) -> Slots {
        Slots { next: region.start, end: region.end }
    }

    /// Returns the number of slots left.
    pub fn left(&self) -> u64 {
        self.end - self.next
    }

    /// Takes `count` slots and returns the first.
    pub fn take(&mut self, count: u64) -> Option<u64> {
        let first = self.next;
        let next = first.checked_add(count)?;
        if next > self.end {
            return None;
        }
        self.next = next;
        Some(first)
    }
}

/// One untyped memory and the used part of it.
#[derive(Clone, Copy, Debug)]
pub struct Arena {
    untyped: Untyped,
    size_bits: usize,
    used: u64,
}

impl Arena {
    /// Describes an untyped memory of 2^`size_bits` bytes of which no object has been made yet.
    pub const fn new(untyped: Untyped, size_bits: usize) -> Arena {
        Arena { untyped, size_bits, used: 0 }
    }

    /// Returns the capability.
    pub fn untyped(&self) -> Untyped {
        self.untyped
    }

    /// Returns the offset of `count` objects of 2^`bits` bytes, and the watermark behind them; `None` if they do not
    /// fit.
    fn place(&self, bits: usize, count: u64) -> Option<(u64, u64)> {
        let size = 1_u64.checked_shl(bits.try_into().ok()?)?;
        let start = self.used.checked_next_multiple_of(size)?;
        let end = start.checked_add(size.checked_mul(count)?)?;
        (end <= 1 << self.size_bits).then_some((start, end))
    }

    /// Returns the bytes left, before alignment.
    pub fn left(&self) -> u64 {
        (1 << self.size_bits) - self.used
    }

    /// Makes `count` objects with their capabilities in the slots from `first` on. Returns the offset of the first
    /// object.
    ///
    /// # Errors
    ///
    /// They do not fit ([`Error::NotEnoughMemory`]), or the kernel's error.
    pub fn make(&mut self, object: ObjectType, size_bits: usize, first: u64, count: u64) -> Result<u64> {
        let Some((start, end)) = self.place(object.size_bits(size_bits), count) else {
            return Err(Failure::new(Error::NotEnoughMemory, [self.left(), 0]));
        };
        let root = Slot { root: initial::CNODE, index: 0, depth: 0 };
        self.untyped.retype(object, size_bits, root, first, count)?;
        self.used = end;
        Ok(start)
    }

    /// Deletes all objects that were made of this memory, so that it can be used anew.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn revoke(&mut self) -> Result<()> {
        Slot::own(self.untyped.pointer()).revoke()?;
        self.used = 0;
        Ok(())
    }
}

/// Number of remembered ranges of returned slots.
const RETURNED: usize = 32;

/// Slots and memory of a root task.
#[derive(Debug)]
#[doc(alias = "vka")]
pub struct Allocator {
    slots: Slots,
    /// Ranges of slots that were given back.
    returned: heapless::Vec<Slots, RETURNED>,
    arenas: heapless::Vec<Arena, MAXIMUM_BOOT_UNTYPEDS>,
}

impl Allocator {
    /// Creates an allocator over all empty slots and all RAM of the boot information.
    pub fn new(boot: &BootInformation) -> Allocator {
        let mut arenas = heapless::Vec::new();
        for (untyped, description) in boot.untypeds().filter(|(_, description)| description.is_device == 0) {
            let arena = Arena::new(untyped, description.size_bits.into());
            arenas.push(arena).expect("the boot information lists no more than this");
        }
        Allocator { slots: Slots::new(boot.empty_slots()), returned: heapless::Vec::new(), arenas }
    }

    /// Creates an allocator over these slots and this one memory.
    pub fn over(slots: Slots, arena: Arena) -> Allocator {
        let mut arenas = heapless::Vec::new();
        arenas.push(arena).expect("one fits");
        Allocator { slots, returned: heapless::Vec::new(), arenas }
    }

    /// Returns the number of slots left, without those given back.
    pub fn slots_left(&self) -> u64 {
        self.slots.left()
    }

    /// Returns the bytes left, before alignment.
    pub fn bytes_left(&self) -> u64 {
        self.arenas.iter().map(Arena::left).sum()
    }

    /// Takes `count` consecutive empty slots and returns the first.
    ///
    /// # Errors
    ///
    /// Too few slots are left: [`Error::RangeError`], as in the kernel's errors.
    pub fn slots(&mut self, count: u64) -> Result<u64> {
        if let Some(first) = self.returned.iter_mut().find_map(|slots| slots.take(count)) {
            self.returned.retain(|slots| slots.left() > 0);
            return Ok(first);
        }
        let left = self.slots.left();
        self.slots.take(count).ok_or(Failure::new(Error::RangeError, [0, left]))
    }

    /// Takes one empty slot.
    ///
    /// # Errors
    ///
    /// No slot is left.
    pub fn slot(&mut self) -> Result<u64> {
        self.slots(1)
    }

    /// Makes `count` objects (up to [`RETYPE_LIMIT`](abi_sel4::configuration::RETYPE_LIMIT)) in consecutive slots and
    /// returns the first.
    ///
    /// # Errors
    ///
    /// Slots or memory are too few, or the kernel's error.
    pub fn make(&mut self, object: ObjectType, size_bits: usize, count: u64) -> Result<u64> {
        let bits = object.size_bits(size_bits);
        let fits = self.arenas.iter_mut().filter(|arena| arena.place(bits, count).is_some());
        let Some(arena) = fits.min_by_key(|arena| arena.left()) else {
            return Err(Failure::new(Error::NotEnoughMemory, [self.bytes_left(), 0]));
        };
        let place = self.returned.iter_mut().find(|slots| slots.left() >= count).unwrap_or(&mut self.slots);
        let mut slots = *place;
        let left = slots.left();
        let first = slots.take(count).ok_or(Failure::new(Error::RangeError, [0, left]))?;
        arena.make(object, size_bits, first, count)?;
        *place = slots;
        self.returned.retain(|slots| slots.left() > 0);
        Ok(first)
    }

    /// Makes one object of a type whose size is fixed.
    ///
    /// # Errors
    ///
    /// As [`make`](Allocator::make).
    pub fn object(&mut self, object: ObjectType) -> Result<u64> {
        self.make(object, 0, 1)
    }

    /// Takes back slots that are empty again. Ranges beyond the capacity of the list are lost.
    pub fn give_back_slots(&mut self, first: u64, count: u64) {
        let slots = Slots { next: first, end: first + count };
        if slots.left() > 0 {
            let _ = self.returned.push(slots);
        }
    }

    /// Takes back a memory of [`memory`](Allocator::memory), after it was revoked.
    pub fn give_back(&mut self, memory: Arena) {
        debug_assert_eq!(memory.used, 0, "the objects in the memory are deleted");
        // The list has room for all memories of the boot information; one beyond it is lost.
        let _ = self.arenas.push(memory);
    }

    /// Makes an untyped memory, to be revoked as a whole.
    ///
    /// # Errors
    ///
    /// As [`make`](Allocator::make).
    pub fn memory(&mut self, size_bits: usize) -> Result<Arena> {
        let slot = self.make(ObjectType::Untyped, size_bits, 1)?;
        Ok(Arena::new(Untyped::from_pointer(slot), size_bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slots_run_out() {
        let mut slots = Slots::new(SlotRegion { start: 10, end: 13 });
        assert_eq!(slots.take(2), Some(10));
        assert_eq!(slots.take(2), None);
        assert_eq!(slots.take(u64::MAX), None);
        assert_eq!(slots.take(1), Some(12));
        assert_eq!((slots.take(0), slots.left()), (Some(13), 0));
    }

    #[test]
    fn slots_that_were_given_back_are_used_first() {
        let memory = Arena::new(Untyped::from_pointer(1), 12);
        let mut allocator = Allocator::over(Slots::new(SlotRegion { start: 10, end: 100 }), memory);
        assert_eq!(allocator.slots(20), Ok(10));
        allocator.give_back_slots(12, 3);
        allocator.give_back_slots(20, 5);
        assert_eq!((allocator.slots(4), allocator.slots(3), allocator.slots(2)), (Ok(20), Ok(12), Ok(30)));
        assert_eq!((allocator.slot(), allocator.slot()), (Ok(24), Ok(32)));
    }

    #[test]
    fn sizes_without_sense_do_not_fit() {
        let arena = Arena::new(Untyped::from_pointer(1), 12);
        for (bits, count) in [(13, 1), (12, 2), (63, 1), (63, 2), (64, 1), (usize::MAX, 1), (4, u64::MAX), (4, 257)] {
            assert_eq!(arena.place(bits, count), None, "{bits} {count}");
        }
        assert_eq!(arena.place(4, 256), Some((0, 4096)));
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Against a map of the memory in units of 16 bytes.
        #[test]
        fn objects_are_aligned_and_do_not_overlap(requests in prop::collection::vec((4_usize..12, 1_u64..5), 0..60)) {
            let mut arena = Arena::new(Untyped::from_pointer(1), 12);
            let mut units = [false; 256];
            for (bits, count) in requests {
                let size = 1_usize << bits;
                // The first aligned place behind all used units.
                let used = units.iter().rposition(|used| *used).map_or(0, |last| (last + 1) * 16);
                let start = used.next_multiple_of(size);
                let expected = (start + size * count as usize <= 4096).then_some(start as u64);
                let place = arena.place(bits, count);
                prop_assert_eq!(place.map(|(start, _)| start), expected);
                if let Some((start, end)) = place {
                    prop_assert!(start.is_multiple_of(size as u64));
                    units[start as usize / 16..end as usize / 16].iter_mut().for_each(|unit| {
                        assert!(!*unit);
                        *unit = true;
                    });
                    arena.used = end;
                }
            }
        }
    }
}
