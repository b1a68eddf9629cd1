//! The incoming message-signalled interrupt controller.
//!
//! As in the RISC-V Advanced Interrupt Architecture, version 1.0, chapter 3. Each hart has an interrupt file for its
//! supervisor mode (and some for guests): a store of an *identity* to the file's page makes that identity pending. The
//! hart reaches its own file through indirect registers, which are numbered here; other harts only ever store to the
//! page.

/// The registers of the calling hart's own interrupt file.
pub trait InterruptFile {
    /// Reads a register.
    fn read(&self, register: u64) -> u64;
    /// Writes a register.
    fn write(&self, register: u64, value: u64);
    /// Takes the most important pending and enabled identity; 0 if there is none.
    fn claim(&self) -> u32;
}

/// Register that lets the file interrupt its hart.
const DELIVERY: u64 = 0x70;
/// Register of the threshold: only identities below it interrupt; 0 lets all through.
const THRESHOLD: u64 = 0x72;
/// First register of pending bits. With 64-bit registers only the even ones exist.
const PENDING: u64 = 0x80;
/// First register of enable bits.
const ENABLE: u64 = 0xc0;

/// Bytes of one interrupt file's page.
pub const PAGE: u64 = 4096;

/// Brings the calling hart's file into a known state: nothing pending, all of the `identities` enabled, delivery on.
///
/// Enabling all at once is safe because an identity becomes pending only by a store, and right because only the hart
/// itself can change its enable bits: a source can then be moved to this hart by any other one.
pub fn initialise(file: &impl InterruptFile, identities: u32) {
    file.write(DELIVERY, 0);
    for word in 0..=u64::from(identities) / 64 {
        file.write(PENDING + 2 * word, 0);
        let last = u64::from(identities) - 64 * word;
        let mut bits = if last >= 63 { u64::MAX } else { (1 << (last + 1)) - 1 };
        if word == 0 {
            // There is no identity 0.
            bits &= !1;
        }
        file.write(ENABLE + 2 * word, bits);
    }
    file.write(THRESHOLD, 0);
    file.write(DELIVERY, 1);
}

/// Returns the offset of the page of the supervisor file (`guest` 0) or of a guest file, in the block of pages of an
/// IMSIC with this many guest index bits, for the hart at this position of its list of harts.
pub const fn page_offset(position: u32, guest_index_bits: u32, guest: u32) -> u64 {
    ((position as u64) << guest_index_bits | guest as u64) * PAGE
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    #[derive(Default)]
    struct Model(RefCell<BTreeMap<u64, u64>>);

    impl InterruptFile for Model {
        fn read(&self, register: u64) -> u64 {
            self.0.borrow().get(&register).copied().unwrap_or(0)
        }
        fn write(&self, register: u64, value: u64) {
            self.0.borrow_mut().insert(register, value);
        }
        fn claim(&self) -> u32 {
            0
        }
    }

    #[test]
    fn exactly_the_identities_that_exist_are_enabled() {
        let file = Model::default();
        initialise(&file, 255);
        assert_eq!(file.read(0xc0), u64::MAX - 1);
        assert_eq!((file.read(0xc2), file.read(0xc4), file.read(0xc6)), (u64::MAX, u64::MAX, u64::MAX));
        assert!(!file.0.borrow().contains_key(&0xc8));
        assert_eq!((file.read(0x70), file.read(0x72)), (1, 0));

        let file = Model::default();
        initialise(&file, 63);
        assert_eq!(file.read(0xc0), u64::MAX - 1);
        assert!(!file.0.borrow().contains_key(&0xc2));
    }

    #[test]
    fn files_of_a_hart_lie_behind_one_another() {
        assert_eq!(page_offset(0, 2, 0), 0);
        assert_eq!(page_offset(0, 2, 1), 0x1000);
        assert_eq!(page_offset(3, 2, 0), 0xc000);
        assert_eq!(page_offset(3, 0, 0), 0x3000);
    }
}
