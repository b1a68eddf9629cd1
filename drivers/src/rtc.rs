//! The Goldfish real-time clock: what QEMU's `virt` machine has, under the device tree's name `google,goldfish-rtc`.
//!
//! It counts the nanoseconds since 1970 in UTC. Only the two registers that tell the time are used; a kernel reads it once
//! and goes on with its own timer, which is quicker to read and never jumps. The registers are those of the Android
//! emulator's hardware description (`GOLDFISH-VIRTUAL-HARDWARE.TXT`, section "Goldfish Timer").

use crate::Registers;

/// Bytes of registers that the driver needs.
pub const LENGTH: u64 = 8;

/// The lower half of the time. Reading it holds the upper half still.
const TIME_LOW: usize = 0x00;
const TIME_HIGH: usize = 0x04;

/// A real-time clock.
#[derive(Debug)]
pub struct RealTimeClock<R>(R);

impl<R: Registers> RealTimeClock<R> {
    /// The clock behind these registers.
    pub const fn new(registers: R) -> RealTimeClock<R> {
        RealTimeClock(registers)
    }

    /// Nanoseconds since 1970 began.
    pub fn nanoseconds(&self) -> u64 {
        let low = self.0.read32(TIME_LOW);
        let high = self.0.read32(TIME_HIGH);
        u64::from(high) << 32 | u64::from(low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// The device: every look at the lower half is later than the one before.
    struct Model {
        time: Cell<u64>,
        held: Cell<u32>,
    }

    impl Registers for &Model {
        fn read8(&self, _: usize) -> u8 {
            panic!("the clock has 32-bit registers")
        }
        fn write8(&self, _: usize, _: u8) {
            panic!("the clock has 32-bit registers")
        }
        fn read32(&self, offset: usize) -> u32 {
            match offset {
                TIME_LOW => {
                    let time = self.time.get();
                    self.held.set((time >> 32) as u32);
                    self.time.set(time + 1000);
                    time as u32
                }
                TIME_HIGH => self.held.get(),
                register => panic!("register {register:#x} is never read"),
            }
        }
        fn write32(&self, _: usize, _: u32) {
            panic!("nothing is ever set")
        }
    }

    #[test]
    fn the_halves_belong_together() {
        let start = 0x1234_ffff_ffff_ff00;
        let model = Model { time: Cell::new(start), held: Cell::new(0) };
        let clock = RealTimeClock::new(&model);
        assert_eq!(clock.nanoseconds(), start);
        assert_eq!(clock.nanoseconds(), start + 1000);
    }
}
