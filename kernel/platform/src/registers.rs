//! The machine's device memory, in the form that drivers require.

use drivers::{Registers, uintc};

use crate::machine::Window;

/// The registers of a device.
#[derive(Clone, Copy, Debug)]
pub struct Mapped(Window);

impl Mapped {
    /// Maps the registers at this physical address and of this length; `None` if they cannot be device registers.
    pub fn new((address, length): (u64, u64)) -> Option<Mapped> {
        Window::new(address, length).map(Mapped)
    }
}

impl Registers for Mapped {
    #[inline(always)]
    fn read8(&self, offset: usize) -> u8 {
        self.0.read8(offset)
    }
    #[inline(always)]
    fn write8(&self, offset: usize, value: u8) {
        self.0.write8(offset, value);
    }
    #[inline(always)]
    fn read16(&self, offset: usize) -> u16 {
        self.0.read16(offset)
    }
    #[inline(always)]
    fn write16(&self, offset: usize, value: u16) {
        self.0.write16(offset, value);
    }
    #[inline(always)]
    fn read32(&self, offset: usize) -> u32 {
        self.0.read32(offset)
    }
    #[inline(always)]
    fn write32(&self, offset: usize, value: u32) {
        self.0.write32(offset, value);
    }
}

impl uintc::Slots for Mapped {
    #[inline]
    fn read(&self, offset: usize) -> u64 {
        self.0.read64(offset)
    }
    #[inline]
    fn write(&self, offset: usize, value: u64) {
        self.0.write64(offset, value);
    }
}
