//! The Goldfish real-time clock of QEMU's `virt` machine, under the device tree's name `google,goldfish-rtc`.
//!
//! It counts the nanoseconds since 1970 in UTC. A kernel reads it once and goes on with its own timer, which is quicker
//! to read and never jumps; a server of the microkernel, which has no timer, uses its alarm. The registers are those of
//! the Android emulator's hardware description (`GOLDFISH-VIRTUAL-HARDWARE.TXT`, section "Goldfish Timer").

use crate::Registers;

/// Bytes of registers that are needed to read the time. The alarm's follow them, in the same page.
pub const LENGTH: u64 = 8;

/// Lower half of the time. Reading it latches the upper half.
const TIME_LOW: usize = 0x00;
const TIME_HIGH: usize = 0x04;
/// Time of the alarm. Writing the lower half sets it, so that the upper half is written first.
const ALARM_LOW: usize = 0x08;
const ALARM_HIGH: usize = 0x0c;
const INTERRUPT_ENABLE: usize = 0x10;
const CLEAR_INTERRUPT: usize = 0x1c;

/// A real-time clock.
#[derive(Debug)]
pub struct RealTimeClock<R>(R);

impl<R: Registers> RealTimeClock<R> {
    /// Makes the driver of the clock behind these registers.
    pub const fn new(registers: R) -> RealTimeClock<R> {
        RealTimeClock(registers)
    }

    /// Returns the nanoseconds since the start of 1970.
    pub fn nanoseconds(&self) -> u64 {
        let low = self.0.read32(TIME_LOW);
        let high = self.0.read32(TIME_HIGH);
        u64::from(high) << 32 | u64::from(low)
    }

    /// Makes the clock interrupt once at this time, in nanoseconds since 1970, or at once if that has passed. Replaces
    /// an earlier alarm.
    pub fn set_alarm(&self, at: u64) {
        self.0.write32(INTERRUPT_ENABLE, 1);
        self.0.write32(ALARM_HIGH, (at >> 32) as u32);
        self.0.write32(ALARM_LOW, at as u32);
    }

    /// Acknowledges the interrupt of an alarm.
    pub fn acknowledge(&self) {
        self.0.write32(CLEAR_INTERRUPT, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// The device: every read of the lower half is later than the one before.
    #[derive(Default)]
    struct Model {
        time: Cell<u64>,
        held: Cell<u32>,
        alarm: Cell<u64>,
        upper: Cell<u32>,
        interrupts: Cell<bool>,
    }

    impl Registers for &Model {
        fn read8(&self, _: usize) -> u8 {
            panic!("the clock has 32-bit registers")
        }
        fn write8(&self, _: usize, _: u8) {
            panic!("the clock has 32-bit registers")
        }
        fn read16(&self, _: usize) -> u16 {
            panic!("the clock has 32-bit registers")
        }
        fn write16(&self, _: usize, _: u16) {
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
        fn write32(&self, offset: usize, value: u32) {
            match offset {
                ALARM_HIGH => self.upper.set(value),
                ALARM_LOW => self.alarm.set(u64::from(self.upper.get()) << 32 | u64::from(value)),
                INTERRUPT_ENABLE => self.interrupts.set(value == 1),
                CLEAR_INTERRUPT => self.alarm.set(0),
                register => panic!("register {register:#x} is never written"),
            }
        }
    }

    #[test]
    fn the_halves_belong_together() {
        let start = 0x1234_ffff_ffff_ff00;
        let model = Model { time: Cell::new(start), ..Model::default() };
        let clock = RealTimeClock::new(&model);
        assert_eq!(clock.nanoseconds(), start);
        assert_eq!(clock.nanoseconds(), start + 1000);
    }

    #[test]
    fn alarms_are_set_whole_and_taken_back() {
        let model = Model::default();
        let clock = RealTimeClock::new(&model);
        clock.set_alarm(0x1_2345_6789);
        assert_eq!((model.alarm.get(), model.interrupts.get()), (0x1_2345_6789, true));
        clock.acknowledge();
        assert_eq!(model.alarm.get(), 0);
    }
}
