//! The registers of each kind of UART, without policy.

use crate::Registers;

/// Kind of a UART.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UartKind {
    /// A 16550.
    Ns16550 {
        /// Its registers are `1 << shift` bytes apart.
        shift: u32,
    },
    /// SiFive's, with registers of 32 bits.
    SiFive,
}

impl UartKind {
    /// Returns the bytes of registers that the driver uses.
    pub const fn length(self) -> u64 {
        match self {
            UartKind::Ns16550 { shift } => 6 << shift,
            UartKind::SiFive => sifive::LENGTH,
        }
    }
}

/// Registers of the 16550.
pub(super) mod ns16550 {
    /// Receiver buffer (read) and transmitter holding register (write).
    pub const DATA: usize = 0;
    pub const INTERRUPT_ENABLE: usize = 1;
    pub const INTERRUPT_ENABLE_RECEIVED: u8 = 1 << 0;
    pub const INTERRUPT_ENABLE_TRANSMITTER_EMPTY: u8 = 1 << 1;
    /// Interrupt identification (read; reading clears the transmitter's interrupt) and FIFO control (write).
    pub const INTERRUPT_IDENTIFICATION: usize = 2;
    pub const FIFO_CONTROL: usize = 2;
    pub const FIFO_ENABLE: u8 = 1 << 0;
    /// Number of bytes that the transmitter takes once it is empty.
    pub const FIFO_BYTES: usize = 16;
    pub const LINE_CONTROL: usize = 3;
    pub const LINE_EIGHT_BITS: u8 = 0b11;
    pub const MODEM_CONTROL: usize = 4;
    /// Terminal ready, request to send, and the output that connects the interrupt line on most boards.
    pub const MODEM_READY: u8 = 0b1011;
    pub const LINE_STATUS: usize = 5;
    pub const LINE_STATUS_RECEIVED: u8 = 1 << 0;
    pub const LINE_STATUS_BREAK: u8 = 1 << 4;
    pub const LINE_STATUS_TRANSMITTER_EMPTY: u8 = 1 << 5;
}

/// Registers of SiFive's UART.
pub(super) mod sifive {
    pub const TRANSMIT_DATA: usize = 0x00;
    /// The transmitter's FIFO has no room; a byte written now is lost.
    pub const TRANSMIT_FULL: u32 = 1 << 31;
    /// Reading takes a byte.
    pub const RECEIVE_DATA: usize = 0x04;
    pub const RECEIVE_EMPTY: u32 = 1 << 31;
    pub const TRANSMIT_CONTROL: usize = 0x08;
    /// Enabled, and an interrupt when fewer than one byte waits.
    pub const TRANSMIT_ENABLED: u32 = 1 | 1 << 16;
    pub const RECEIVE_CONTROL: usize = 0x0c;
    /// Enabled, and an interrupt when more than no byte waits.
    pub const RECEIVE_ENABLED: u32 = 1;
    pub const INTERRUPT_ENABLE: usize = 0x10;
    pub const INTERRUPT_ENABLE_TRANSMIT: u32 = 1 << 0;
    pub const INTERRUPT_ENABLE_RECEIVE: u32 = 1 << 1;
    pub const LENGTH: u64 = 0x1c;
}

/// Whether the transmitter will interrupt when it is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transmitting {
    Idle,
    Interrupting,
}

/// A look at the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    Nothing,
    Byte(u8),
    Break,
}

/// A device.
#[derive(Debug)]
pub(super) struct Line<R> {
    registers: R,
    kind: UartKind,
    /// Whether a break has come whose byte was not read yet: reading a 16550's status clears it there.
    has_break: bool,
}

impl<R: Registers> Line<R> {
    pub(super) const fn new(registers: R, kind: UartKind) -> Line<R> {
        Line { registers, kind, has_break: false }
    }

    /// Sets up the device, with all interrupts off. The FIFOs keep what is in them: keys that were pressed early, and
    /// the last words of the firmware.
    pub(super) fn initialise(&self) {
        match self.kind {
            UartKind::Ns16550 { .. } => {
                self.write8(ns16550::INTERRUPT_ENABLE, 0);
                self.write8(ns16550::LINE_CONTROL, ns16550::LINE_EIGHT_BITS);
                self.write8(ns16550::FIFO_CONTROL, ns16550::FIFO_ENABLE);
                self.write8(ns16550::MODEM_CONTROL, ns16550::MODEM_READY);
            }
            UartKind::SiFive => {
                self.registers.write32(sifive::INTERRUPT_ENABLE, 0);
                self.registers.write32(sifive::TRANSMIT_CONTROL, sifive::TRANSMIT_ENABLED);
                self.registers.write32(sifive::RECEIVE_CONTROL, sifive::RECEIVE_ENABLED);
            }
        }
    }

    /// Enables the receiver's interrupt, and the transmitter's if it is to interrupt.
    pub(super) fn enable_interrupts(&self, transmitting: Transmitting) {
        let transmits = transmitting == Transmitting::Interrupting;
        match self.kind {
            UartKind::Ns16550 { .. } => {
                let transmitter = if transmits { ns16550::INTERRUPT_ENABLE_TRANSMITTER_EMPTY } else { 0 };
                self.write8(ns16550::INTERRUPT_ENABLE, ns16550::INTERRUPT_ENABLE_RECEIVED | transmitter);
            }
            UartKind::SiFive => {
                let transmitter = if transmits { sifive::INTERRUPT_ENABLE_TRANSMIT } else { 0 };
                self.registers.write32(sifive::INTERRUPT_ENABLE, sifive::INTERRUPT_ENABLE_RECEIVE | transmitter);
            }
        }
    }

    /// Acknowledges the device's interrupt. SiFive's goes when its reason has gone.
    pub(super) fn acknowledge(&self) {
        if let UartKind::Ns16550 { .. } = self.kind {
            // Reading the identification acknowledges the transmitter's interrupt; the status selects the work.
            self.read8(ns16550::INTERRUPT_IDENTIFICATION);
        }
    }

    /// Takes the next byte or break.
    pub(super) fn receive(&mut self) -> Received {
        match self.kind {
            UartKind::Ns16550 { .. } => {
                if self.line_status() & ns16550::LINE_STATUS_RECEIVED == 0 {
                    return Received::Nothing;
                }
                match self.read8(ns16550::DATA) {
                    // A break comes as a zero, behind the bytes that came before it.
                    0 if self.has_break => {
                        self.has_break = false;
                        Received::Break
                    }
                    byte => Received::Byte(byte),
                }
            }
            UartKind::SiFive => match self.registers.read32(sifive::RECEIVE_DATA) {
                data if data & sifive::RECEIVE_EMPTY != 0 => Received::Nothing,
                data => Received::Byte(data as u8),
            },
        }
    }

    /// Returns the number of bytes that the transmitter takes now.
    pub(super) fn room(&mut self) -> usize {
        match self.kind {
            UartKind::Ns16550 { .. } => {
                let is_empty = self.line_status() & ns16550::LINE_STATUS_TRANSMITTER_EMPTY != 0;
                if is_empty { ns16550::FIFO_BYTES } else { 0 }
            }
            UartKind::SiFive => usize::from(self.is_ready()),
        }
    }

    /// Returns whether the transmitter takes a byte now.
    pub(super) fn is_ready(&self) -> bool {
        match self.kind {
            UartKind::Ns16550 { .. } => self.read8(ns16550::LINE_STATUS) & ns16550::LINE_STATUS_TRANSMITTER_EMPTY != 0,
            UartKind::SiFive => self.registers.read32(sifive::TRANSMIT_DATA) & sifive::TRANSMIT_FULL == 0,
        }
    }

    /// Gives the transmitter a byte.
    pub(super) fn send(&self, byte: u8) {
        match self.kind {
            UartKind::Ns16550 { .. } => self.write8(ns16550::DATA, byte),
            UartKind::SiFive => self.registers.write32(sifive::TRANSMIT_DATA, byte.into()),
        }
    }

    fn line_status(&mut self) -> u8 {
        let status = self.read8(ns16550::LINE_STATUS);
        self.has_break |= status & ns16550::LINE_STATUS_BREAK != 0;
        status
    }

    fn read8(&self, register: usize) -> u8 {
        self.registers.read8(register << self.shift())
    }

    fn write8(&self, register: usize, value: u8) {
        self.registers.write8(register << self.shift(), value);
    }

    fn shift(&self) -> u32 {
        match self.kind {
            UartKind::Ns16550 { shift } => shift,
            UartKind::SiFive => 2,
        }
    }
}
