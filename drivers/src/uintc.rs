//! UINTC, the controller of interrupts from one program to another on the machine `uintc`.
//!
//! boards/uintc/README.md describes it. A *slot* is a receiver: pending vectors, the hart that runs the receiver, and a
//! mode. A kernel makes a slot active on the hart that is about to run the receiver, and inactive before another
//! program runs there, so that no interrupt is for the wrong program. Vectors that come meanwhile stay pending in the
//! slot.
//!
//! Programs reach slots by UIPI instructions: a receiver its own one, a sender those of its *sender table*, which is
//! memory of the kernel's. An entry of the table is the right to send; a program names it by its index, and the machine
//! refuses an index behind the table's end and an entry that is not valid.

/// Number of slots.
pub const SLOTS: u16 = 512;
/// Bytes of registers.
pub const LENGTH: u64 = SLOTS as u64 * SLOT_LENGTH as u64;
/// Number of vectors of a slot.
pub const VECTORS: u8 = 64;

const SLOT_LENGTH: usize = 32;
/// Offsets in a slot: a vector to send, hart and mode, pending vectors.
const SEND: usize = 0x00;
const LOW: usize = 0x08;
const HIGH: usize = 0x10;
/// The mode of a slot that may interrupt: active, with vectors of 64 bits.
const ACTIVE: u64 = 3;
/// The mode of a slot that may not.
const INACTIVE: u64 = 2;

/// The registers: accesses have 64 bits, happen exactly once and in program order.
pub trait Slots {
    /// Reads a register.
    fn read(&self, offset: usize) -> u64;
    /// Writes a register.
    fn write(&self, offset: usize, value: u64);
}

/// The number of a slot that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u16);

impl Slot {
    /// Returns the slot with this number; `None` if there is none.
    pub const fn new(number: u16) -> Option<Slot> {
        if number < SLOTS { Some(Slot(number)) } else { None }
    }

    /// Returns the number.
    pub const fn number(self) -> u16 {
        self.0
    }

    const fn register(self, offset: usize) -> usize {
        self.0 as usize * SLOT_LENGTH + offset
    }
}

/// Returns an entry of a sender table, the right to send one vector to one slot; `None` if there is no such vector. The
/// entry 0 is the right to nothing.
pub const fn entry(slot: Slot, vector: u8) -> Option<u64> {
    if vector < VECTORS { Some((slot.0 as u64) << 48 | (vector as u64) << 16 | 1) } else { None }
}

/// The controller.
#[derive(Clone, Copy, Debug)]
pub struct Uintc<S>(S);

impl<S: Slots> Uintc<S> {
    /// Takes over the registers.
    pub const fn new(slots: S) -> Uintc<S> {
        Uintc(slots)
    }

    /// Makes a slot empty and inactive, for a new receiver.
    pub fn reset(&self, slot: Slot) {
        self.deactivate(slot);
        self.take(slot);
    }

    /// Takes the pending vectors of a slot, one bit each.
    pub fn take(&self, slot: Slot) -> u64 {
        self.0.read(slot.register(HIGH))
    }

    /// Lets a slot interrupt a hart, by the machine's number of the hart. Pending vectors interrupt it at once.
    pub fn activate(&self, slot: Slot, hart_id: u16) {
        self.0.write(slot.register(LOW), u64::from(hart_id) << 16 | ACTIVE);
    }

    /// Lets a slot interrupt no hart. The interrupt of a vector that came before may still be pending at the slot's
    /// former hart.
    pub fn deactivate(&self, slot: Slot) {
        self.0.write(slot.register(LOW), INACTIVE);
    }

    /// Makes a vector pending.
    pub fn send(&self, slot: Slot, vector: u8) {
        self.0.write(slot.register(SEND), u64::from(vector));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[derive(Default)]
    struct Model {
        accesses: RefCell<Vec<(usize, Option<u64>)>>,
    }

    impl Slots for &Model {
        fn read(&self, offset: usize) -> u64 {
            self.accesses.borrow_mut().push((offset, None));
            0
        }
        fn write(&self, offset: usize, value: u64) {
            self.accesses.borrow_mut().push((offset, Some(value)));
        }
    }

    #[test]
    fn a_slot_and_a_vector_must_exist() {
        assert_eq!(Slot::new(511).map(Slot::number), Some(511));
        assert_eq!((Slot::new(512), Slot::new(u16::MAX)), (None, None));
        let slot = Slot::new(3).unwrap();
        assert_eq!(entry(slot, 63), Some(3 << 48 | 63 << 16 | 1));
        assert_eq!((entry(slot, 64), entry(slot, 255)), (None, None));
        assert_eq!(entry(Slot::new(0).unwrap(), 0), Some(1), "the least entry is valid");
    }

    #[test]
    fn each_operation_is_one_access_and_a_reset_takes_vectors_from_an_inactive_slot() {
        let model = Model::default();
        let controller = Uintc::new(&model);
        let slot = Slot::new(2).unwrap();
        controller.activate(slot, 5);
        controller.send(slot, 9);
        controller.deactivate(slot);
        assert_eq!(model.accesses.take(), [(0x48, Some(5 << 16 | 3)), (0x40, Some(9)), (0x48, Some(2))]);
        controller.reset(slot);
        assert_eq!(model.accesses.take(), [(0x48, Some(2)), (0x50, None)]);
        assert_eq!(controller.take(slot), 0);
        assert_eq!(model.accesses.take(), [(0x50, None)]);
        let last = Slot::new(SLOTS - 1).unwrap();
        controller.activate(last, 0);
        assert!(model.accesses.take().iter().all(|access| (access.0 as u64) < LENGTH));
    }
}
