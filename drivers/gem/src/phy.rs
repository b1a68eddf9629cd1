//! The PHY behind the controller: its state of the line, by the management interface (IEEE 802.3 clause 22).

use drivers::Registers;

use crate::register;

/// Number of addresses on the management interface.
const ADDRESSES: u32 = 32;
/// Number of looks at the interface for the end of one access, which takes some 26 microseconds at 2.5 MHz.
const LOOKS: usize = 10_000;

/// Registers of every PHY.
mod of_phy {
    pub const STATUS: u32 = 1;
    pub const IDENTITY: u32 = 2;
    pub const ADVERTISED: u32 = 4;
    pub const PARTNER: u32 = 5;
    pub const GIGABIT_CONTROL: u32 = 9;
    pub const GIGABIT_STATUS: u32 = 10;
}

/// Bits of its status.
const LINK_IS_UP: u16 = 1 << 2;
const IS_NEGOTIATED: u16 = 1 << 5;
const HAS_GIGABIT: u16 = 1 << 8;

/// A speed of the line, in both directions at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// 10 Mbit/s.
    Ten,
    /// 100 Mbit/s.
    Hundred,
    /// 1 Gbit/s.
    Thousand,
}

/// The management interface, which was enabled.
pub struct Management<'a, R>(pub &'a R);

impl<R: Registers> Management<'_, R> {
    /// Reads a register of a PHY; `None` if the interface does not answer in time.
    fn read(&self, phy: u32, register: u32) -> Option<u16> {
        const CLAUSE_22: u32 = 1 << 30;
        const READ: u32 = 2 << 28;
        const MUST_BE_TWO: u32 = 2 << 16;
        self.0.write32(register::PHY_MAINTENANCE, CLAUSE_22 | READ | phy << 23 | register << 18 | MUST_BE_TWO);
        let is_idle = || self.0.read32(register::NETWORK_STATUS) & register::MANAGEMENT_IDLE != 0;
        (0..LOOKS).any(|_| is_idle()).then(|| self.0.read32(register::PHY_MAINTENANCE) as u16)
    }

    /// Returns the address of the first PHY.
    pub fn find(&self) -> Option<u32> {
        for phy in 0..ADDRESSES {
            // Ones are the answer of no device.
            if !matches!(self.read(phy, of_phy::IDENTITY)?, 0 | u16::MAX) {
                return Some(phy);
            }
        }
        None
    }

    /// Returns whether the line is up. `None` if the PHY does not say.
    pub fn is_up(&self, phy: u32) -> Option<bool> {
        // The first look gives a failure in the past.
        self.read(phy, of_phy::STATUS)?;
        Some(self.read(phy, of_phy::STATUS)? & LINK_IS_UP != 0)
    }

    /// Returns the best speed that both ends of the line have agreed on; `None` if they have not.
    pub fn speed(&self, phy: u32) -> Option<Speed> {
        const GIGABIT_FULL: u16 = 1 << 9;
        const HUNDRED_FULL: u16 = 1 << 8;
        const TEN_FULL: u16 = 1 << 6;
        let status = self.read(phy, of_phy::STATUS)?;
        if status & IS_NEGOTIATED == 0 {
            return None;
        }
        if status & HAS_GIGABIT != 0 {
            // The partner's abilities are two bits further up than our own.
            let partner = self.read(phy, of_phy::GIGABIT_STATUS)? >> 2;
            if partner & self.read(phy, of_phy::GIGABIT_CONTROL)? & GIGABIT_FULL != 0 {
                return Some(Speed::Thousand);
            }
        }
        let both = self.read(phy, of_phy::PARTNER)? & self.read(phy, of_phy::ADVERTISED)?;
        match both {
            both if both & HUNDRED_FULL != 0 => Some(Speed::Hundred),
            both if both & TEN_FULL != 0 => Some(Speed::Ten),
            // Half duplex: what the firmware has set stays.
            _ => None,
        }
    }
}
