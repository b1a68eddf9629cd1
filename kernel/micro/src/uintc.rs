//! The slots of the controller of user interrupts, and the sender tables of the harts, each with the operations that
//! concern nothing else. `user_interrupt_uintc` says how threads and address spaces use them.

use core::cell::Cell;
use core::sync::atomic::Ordering;

use drivers::uintc::{SLOTS, Slot, Uintc};
use objects::{Words, frame_words};
use platform::Mapped;

use crate::state::SENDERS_OF_A_SPACE;

/// Number of words of the table of taken slots.
const TAKEN_WORDS: usize = SLOTS as usize / u64::BITS as usize;
const _: () = assert!(SENDERS_OF_A_SPACE < Words::COUNT);

/// The controller of user interrupts, and its slots that threads have.
pub struct InterruptSlots {
    pub(crate) controller: Cell<Option<Uintc<Mapped>>>,
    taken: [Cell<u64>; TAKEN_WORDS],
}

impl InterruptSlots {
    /// Makes the state of a machine without controller.
    pub const fn new() -> InterruptSlots {
        InterruptSlots { controller: Cell::new(None), taken: [const { Cell::new(0) }; TAKEN_WORDS] }
    }

    /// Returns whether the machine has the controller, and harts that armed threads can run on.
    pub fn exist(&self) -> bool {
        self.controller.get().is_some()
    }

    /// Takes an empty slot; `None` if all are taken.
    pub(crate) fn take(&self) -> Option<Slot> {
        let controller = self.controller.get()?;
        let (index, word) = self.taken.iter().enumerate().find(|(_, word)| word.get() != u64::MAX)?;
        let bit = word.get().trailing_ones();
        let slot = Slot::new((index as u32 * u64::BITS + bit) as u16)?;
        word.set(word.get() | 1 << bit);
        controller.reset(slot);
        Some(slot)
    }

    pub(crate) fn give_back(&self, slot: Slot) {
        let number = usize::from(slot.number());
        let word = &self.taken[number / u64::BITS as usize];
        word.set(word.get() & !(1 << (number % u64::BITS as usize)));
    }

    /// Returns whether a thread has the slot.
    pub fn is_taken(&self, slot: u16) -> bool {
        let number = usize::from(slot);
        self.taken.get(number / u64::BITS as usize).is_some_and(|word| word.get() >> (number % 64) & 1 != 0)
    }

    /// Takes all slots but so many.
    #[cfg(test)]
    pub fn leave_free(&self, count: u32) {
        self.taken.iter().for_each(|word| word.set(u64::MAX));
        self.taken[0].set(u64::MAX << count);
    }
}

/// The sender table of a hart.
pub struct SenderTable {
    /// Physical address of its frame; 0 on machines without UINTC.
    pub(crate) frame: Cell<u64>,
    /// ASID of the address space whose entries it has; 0 for none.
    pub(crate) asid: Cell<u16>,
}

impl SenderTable {
    /// Makes a table without memory.
    pub const fn new() -> SenderTable {
        SenderTable { frame: Cell::new(0), asid: Cell::new(0) }
    }

    /// Gives the table a cleared frame, which has no other user for ever.
    pub fn claim(&self, frame: u64) {
        self.frame.set(frame);
    }

    /// Returns the entry with this index; 0 for none.
    #[cfg(test)]
    pub fn entry(&self, index: u16) -> u64 {
        frame_words(self.frame.get()).get(index.into())
    }

    /// Sets the entry with this index; returns the old one. Both orders, because the machine reads entries: a slot is
    /// prepared before its entry is valid, and read after its entry was cleared.
    pub(crate) fn replace(&self, index: u16, entry: u64) -> u64 {
        frame_words(self.frame.get()).atomic(index.into()).swap(entry, Ordering::AcqRel)
    }

    /// Returns whether the table has entries of an address space.
    pub(crate) fn is_of(&self, asid: u16) -> bool {
        self.frame.get() != 0 && self.asid.get() == asid
    }

    /// Makes the table that of an address space. The hart is in the kernel, or its thread is stopped next.
    pub fn begin(&self, asid: u16) {
        if self.asid.replace(asid) != asid && self.frame.get() != 0 {
            for index in 1..=SENDERS_OF_A_SPACE as u16 {
                self.replace(index, 0);
            }
        }
    }
}
