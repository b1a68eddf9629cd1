//! Device registers.

use crate::layout::{self, DEVICE_WINDOW, DIRECT_MAP_SIZE};

/// The registers of one device, in the device window.
///
/// Reads and writes are checked against the length. RISC-V orders accesses to memory and to devices only by fences. The
/// fence before a register write makes earlier stores to memory visible to the device; the fence after a register read
/// orders it before later loads from memory. A window never covers memory, so no access through it can change memory
/// that Rust code owns; a device's accesses to addresses that it was given are its driver's responsibility.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    base: usize,
    length: usize,
}

macro_rules! access {
    ($read:ident, $write:ident, $type:ty, $bits:literal) => {
        #[doc = concat!("Reads the ", $bits, "-bit register at this offset.")]
        ///
        /// # Panics
        /// If the offset is not aligned or not in the window.
        #[inline]
        pub fn $read(&self, offset: usize) -> $type {
            let pointer = self.pointer::<$type>(offset);
            // SAFETY: `pointer` has checked bounds and alignment; the window is mapped for ever and is not memory. The
            // fence is allowed everywhere.
            unsafe {
                let value = pointer.read_volatile();
                core::arch::asm!("fence i, r", options(nostack, preserves_flags));
                value
            }
        }

        #[doc = concat!("Writes the ", $bits, "-bit register at this offset.")]
        ///
        /// # Panics
        /// If the offset is not aligned or not in the window.
        #[inline]
        pub fn $write(&self, offset: usize, value: $type) {
            let pointer = self.pointer::<$type>(offset);
            // SAFETY: as for reading.
            unsafe {
                core::arch::asm!("fence w, o", options(nostack, preserves_flags));
                pointer.write_volatile(value)
            }
        }
    };
}

impl Window {
    /// Opens the registers at these physical addresses; `None` if any of them is memory or beyond the device window.
    pub fn new(physical: u64, length: u64) -> Option<Window> {
        let end = physical.checked_add(length)?;
        if length == 0 || end > DIRECT_MAP_SIZE || layout::is_memory(physical, end) {
            return None;
        }
        Some(Window { base: (DEVICE_WINDOW + physical) as usize, length: length as usize })
    }

    access!(read8, write8, u8, "8");
    access!(read16, write16, u16, "16");
    access!(read32, write32, u32, "32");
    access!(read64, write64, u64, "64");

    /// Returns the virtual address of the first register, for drivers that make their own pointers.
    pub fn address(&self) -> usize {
        self.base
    }

    /// Returns the length of the window in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    #[inline(always)]
    fn pointer<T>(&self, offset: usize) -> *mut T {
        assert!(
            (self.base + offset).is_multiple_of(size_of::<T>())
                && offset < self.length
                && self.length - offset >= size_of::<T>(),
            "device register {offset:#x} is outside its window, or not aligned"
        );
        (self.base + offset) as *mut T
    }
}
