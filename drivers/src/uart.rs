//! The 16550 UART.
//!
//! Own code and not the crate `uart_16550`: that crate polls, its interface to registers requires `unsafe` of every
//! implementer, and a console needs five registers. The registers are those of National Semiconductor's PC16550D data
//! sheet.
//!
//! Output goes to a ring that the transmitter's interrupt empties, 16 bytes at a time; input comes from the receiver's
//! interrupt into another ring. The transmitter's interrupt is enabled only while the ring holds bytes: an idle
//! transmitter would otherwise interrupt for ever. The line's speed stays as the firmware set it.

use crate::Registers;
use crate::ring::Ring;

/// Receiver buffer (read) and transmitter holding register (write).
const DATA: usize = 0;
const INTERRUPT_ENABLE: usize = 1;
const INTERRUPT_ENABLE_RECEIVED: u8 = 1 << 0;
const INTERRUPT_ENABLE_TRANSMITTER_EMPTY: u8 = 1 << 1;
/// Interrupt identification (read; reading clears the transmitter's interrupt) and FIFO control (write).
const INTERRUPT_IDENTIFICATION: usize = 2;
const FIFO_CONTROL: usize = 2;
const FIFO_ENABLE_AND_CLEAR: u8 = 0b111;
const LINE_CONTROL: usize = 3;
const LINE_EIGHT_BITS: u8 = 0b11;
const MODEM_CONTROL: usize = 4;
/// Terminal ready, request to send, and the output that connects the interrupt line on most boards.
const MODEM_READY: u8 = 0b1011;
const LINE_STATUS: usize = 5;
const LINE_STATUS_RECEIVED: u8 = 1 << 0;
const LINE_STATUS_BREAK: u8 = 1 << 4;
const LINE_STATUS_TRANSMITTER_EMPTY: u8 = 1 << 5;

/// Number of bytes that the transmitter takes once it is empty.
const FIFO_BYTES: usize = 16;
/// Number of bytes that one interrupt takes from the receiver; the rest interrupts again.
const RECEIVE_LIMIT: usize = 16 * FIFO_BYTES;
/// Number of times that a polling writer looks at a transmitter before it gives up: a broken UART must not hang a
/// panic. A transmitter that has stalled is looked at once for each byte, until it moves again.
const POLLS: usize = 1_000_000;

/// A UART with its rings.
#[derive(Debug)]
#[doc(alias = "16550")]
#[doc(alias = "ns16550")]
pub struct Uart<R> {
    registers: R,
    shift: u32,
    transmit: Ring<4096>,
    receive: Ring<1024>,
    transmitting: Transmitting,
    patience: Patience,
    lost: usize,
    /// Whether a break has come whose byte was not read yet: reading the status clears it there.
    has_break: bool,
}

/// Number of looks at a busy transmitter before a byte is sent regardless.
#[derive(Clone, Copy, Debug)]
struct Patience(usize);

impl Patience {
    const FULL: Patience = Patience(POLLS);
}

/// Whether the transmitter will interrupt when it is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transmitting {
    Idle,
    Interrupting,
}

/// Result of an interrupt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Number of received bytes.
    pub received: usize,
    /// Number of bytes that left for the transmitter, so that there is room again.
    pub sent: usize,
    /// Number of breaks: the line was held at zero for longer than a byte, which no byte can do.
    pub breaks: usize,
}

impl<R: Registers> Uart<R> {
    /// Makes the driver of the UART behind these registers, which are `1 << shift` bytes apart.
    pub const fn new(registers: R, shift: u32) -> Uart<R> {
        Uart {
            registers,
            shift,
            transmit: Ring::new(),
            receive: Ring::new(),
            transmitting: Transmitting::Idle,
            patience: Patience::FULL,
            lost: 0,
            has_break: false,
        }
    }

    /// Sets up the device, with all interrupts off: eight bits, no parity, FIFOs on and empty.
    pub fn initialise(&mut self) {
        self.write_register(INTERRUPT_ENABLE, 0);
        self.write_register(LINE_CONTROL, LINE_EIGHT_BITS);
        self.write_register(FIFO_CONTROL, FIFO_ENABLE_AND_CLEAR);
        self.write_register(MODEM_CONTROL, MODEM_READY);
    }

    /// Enables the device's interrupts. Before that, output is sent by polling.
    pub fn enable_interrupts(&mut self) {
        self.write_register(INTERRUPT_ENABLE, self.enabled());
    }

    /// Queues as many bytes as there is room for, and returns their number.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.iter().take_while(|&&byte| self.transmit.push(byte).is_ok()).count();
        if self.transmitting == Transmitting::Idle && !self.transmit.is_empty() {
            self.feed_transmitter();
        }
        taken
    }

    /// Moves received bytes into the buffer, and returns their number.
    pub fn read(&mut self, buffer: &mut [u8]) -> usize {
        let mut count = 0;
        for place in buffer {
            let Some(byte) = self.receive.pop() else { break };
            *place = byte;
            count += 1;
        }
        count
    }

    /// Returns the number of bytes that wait for the transmitter.
    pub fn waiting(&self) -> usize {
        self.transmit.len()
    }

    /// Returns the number of bytes that can wait to be sent.
    pub fn capacity(&self) -> usize {
        self.transmit.capacity()
    }

    /// Returns the number of bytes that were received but not read.
    pub fn received(&self) -> usize {
        self.receive.len()
    }

    /// Returns the number of bytes that were received while the ring was full, and are lost.
    pub fn lost(&self) -> usize {
        self.lost
    }

    /// Serves the device after an interrupt, until it no longer requests one.
    pub fn interrupt(&mut self) -> Events {
        // Reading the identification acknowledges the transmitter's interrupt; the status below selects the work.
        self.read_register(INTERRUPT_IDENTIFICATION);
        let (received, breaks) = self.drain_receiver();
        let before = self.transmit.len();
        if self.transmitting == Transmitting::Interrupting {
            self.feed_transmitter();
        }
        Events { received, sent: before - self.transmit.len(), breaks }
    }

    /// Sends everything in the ring and then these bytes, by polling. For panics, and for a full ring.
    pub fn write_polled(&mut self, bytes: &[u8]) {
        while let Some(byte) = self.transmit.pop() {
            send_polled(&self.registers, self.shift, byte, &mut self.patience);
        }
        for &byte in bytes {
            send_polled(&self.registers, self.shift, byte, &mut self.patience);
        }
    }

    /// Takes what has come, and returns the number of bytes and of breaks.
    fn drain_receiver(&mut self) -> (usize, usize) {
        let (mut count, mut breaks) = (0, 0);
        // A device that always has one more byte must not hold the hart.
        while count + breaks < RECEIVE_LIMIT && self.line_status() & LINE_STATUS_RECEIVED != 0 {
            let byte = self.read_register(DATA);
            // A break comes as a zero, behind the bytes that came before it.
            if byte == 0 && self.has_break {
                self.has_break = false;
                breaks += 1;
                continue;
            }
            if self.receive.push(byte).is_err() {
                self.lost += 1;
            }
            count += 1;
        }
        (count, breaks)
    }

    fn line_status(&mut self) -> u8 {
        let status = self.read_register(LINE_STATUS);
        self.has_break |= status & LINE_STATUS_BREAK != 0;
        status
    }

    /// Fills the transmitter if it is empty, and enables its interrupt exactly if more work is left then.
    fn feed_transmitter(&mut self) {
        if self.line_status() & LINE_STATUS_TRANSMITTER_EMPTY != 0 {
            for _ in 0..FIFO_BYTES {
                let Some(byte) = self.transmit.pop() else { break };
                self.write_register(DATA, byte);
            }
        }
        let wanted = if self.transmit.is_empty() { Transmitting::Idle } else { Transmitting::Interrupting };
        if wanted != self.transmitting {
            self.transmitting = wanted;
            self.write_register(INTERRUPT_ENABLE, self.enabled());
        }
    }

    fn enabled(&self) -> u8 {
        match self.transmitting {
            Transmitting::Idle => INTERRUPT_ENABLE_RECEIVED,
            Transmitting::Interrupting => INTERRUPT_ENABLE_RECEIVED | INTERRUPT_ENABLE_TRANSMITTER_EMPTY,
        }
    }

    fn read_register(&self, register: usize) -> u8 {
        self.registers.read8(register << self.shift)
    }

    fn write_register(&self, register: usize, value: u8) {
        self.registers.write8(register << self.shift, value);
    }
}

/// Sends bytes by polling, bypassing a [`Uart`] over the same registers: for panics that cannot lock it.
pub fn write_polled(registers: &impl Registers, shift: u32, bytes: &[u8]) {
    let mut patience = Patience::FULL;
    for &byte in bytes {
        send_polled(registers, shift, byte, &mut patience);
    }
}

fn send_polled(registers: &impl Registers, shift: u32, byte: u8, patience: &mut Patience) {
    let is_empty = || registers.read8(LINE_STATUS << shift) & LINE_STATUS_TRANSMITTER_EMPTY != 0;
    let has_room = (0..patience.0).any(|_| {
        let has_room = is_empty();
        if !has_room {
            core::hint::spin_loop();
        }
        has_room
    });
    *patience = if has_room { Patience::FULL } else { Patience(1) };
    registers.write8(DATA << shift, byte);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::VecDeque;

    /// A model of the device: its transmitter is empty when the test says so.
    #[derive(Default)]
    struct Model {
        enabled: u8,
        fifo: Vec<u8>,
        sent: Vec<u8>,
        input: VecDeque<u8>,
        busy: bool,
        /// The status that tells of a break, until it is read.
        breaks: u8,
        looks: usize,
    }

    struct Fake<'a>(&'a RefCell<Model>, u32);

    impl Registers for Fake<'_> {
        fn read8(&self, offset: usize) -> u8 {
            let mut model = self.0.borrow_mut();
            match offset >> self.1 {
                DATA => model.input.pop_front().unwrap_or(0),
                INTERRUPT_IDENTIFICATION => 0,
                LINE_STATUS => {
                    model.looks += 1;
                    let received = if model.input.is_empty() { 0 } else { LINE_STATUS_RECEIVED };
                    let breaks = std::mem::take(&mut model.breaks);
                    breaks | received | if model.busy { 0 } else { LINE_STATUS_TRANSMITTER_EMPTY }
                }
                register => panic!("register {register} is never read"),
            }
        }
        fn write8(&self, offset: usize, value: u8) {
            let mut model = self.0.borrow_mut();
            match offset >> self.1 {
                DATA => {
                    model.fifo.push(value);
                    assert!(model.fifo.len() <= FIFO_BYTES, "the transmitter's FIFO overflows");
                }
                INTERRUPT_ENABLE => model.enabled = value,
                FIFO_CONTROL | LINE_CONTROL | MODEM_CONTROL => {}
                register => panic!("register {register} is never written"),
            }
        }
        fn read32(&self, _: usize) -> u32 {
            panic!("the UART has 8-bit registers")
        }
        fn write32(&self, _: usize, _: u32) {
            panic!("the UART has 8-bit registers")
        }
    }

    impl Model {
        fn transmit(&mut self) {
            let fifo = std::mem::take(&mut self.fifo);
            self.sent.extend(fifo);
        }
    }

    #[test]
    fn long_output_leaves_in_pieces_and_interrupts_stop_at_the_end() {
        let model = RefCell::new(Model::default());
        let mut uart = Uart::new(Fake(&model, 2), 2);
        uart.initialise();
        uart.enable_interrupts();
        let text: Vec<u8> = (0..100).collect();
        assert_eq!(uart.write(&text), 100);
        let mut interrupts = 0;
        while model.borrow().enabled & INTERRUPT_ENABLE_TRANSMITTER_EMPTY != 0 {
            model.borrow_mut().transmit();
            uart.interrupt();
            interrupts += 1;
        }
        model.borrow_mut().transmit();
        assert_eq!(model.borrow().sent, text);
        assert_eq!(interrupts, 100 / FIFO_BYTES);
        assert_eq!(model.borrow().enabled, INTERRUPT_ENABLE_RECEIVED);
    }

    #[test]
    fn a_busy_transmitter_makes_the_ring_fill_and_refuse() {
        let model = RefCell::new(Model { busy: true, ..Model::default() });
        let mut uart = Uart::new(Fake(&model, 0), 0);
        assert_eq!(uart.write(&[7; 5000]), 4096);
        assert_eq!(uart.write(&[7]), 0);
        assert!(model.borrow().fifo.is_empty());
    }

    #[test]
    fn a_stalled_transmitter_costs_a_polling_writer_its_patience_once() {
        let model = RefCell::new(Model { busy: true, ..Model::default() });
        let mut uart = Uart::new(Fake(&model, 0), 0);
        let looks_for = |uart: &mut Uart<Fake>, bytes: &[u8]| {
            model.borrow_mut().transmit();
            let before = model.borrow().looks;
            uart.write_polled(bytes);
            model.borrow().looks - before
        };
        assert_eq!(looks_for(&mut uart, b"abc"), POLLS + 2);
        assert_eq!(looks_for(&mut uart, b"defg"), 4);
        model.borrow_mut().busy = false;
        assert_eq!(looks_for(&mut uart, b"hi"), 2);
        model.borrow_mut().busy = true;
        assert_eq!(looks_for(&mut uart, b"jk"), POLLS + 1, "it has moved in between");
        model.borrow_mut().transmit();
        assert_eq!(model.borrow().sent, b"abcdefghijk");
        let before = model.borrow().looks;
        write_polled(&Fake(&model, 0), 0, b"xyz");
        assert_eq!(model.borrow().looks - before, POLLS + 2, "a panic has patience of its own");
    }

    #[test]
    fn a_break_is_told_from_a_zero_whoever_reads_the_status_first() {
        let model = RefCell::new(Model::default());
        let mut uart = Uart::new(Fake(&model, 0), 0);
        model.borrow_mut().input.extend([0, 1]);
        assert_eq!(uart.interrupt(), Events { received: 2, ..Events::default() });
        for is_seen_by_the_transmitter in [false, true] {
            model.borrow_mut().input.extend([2, 0, 0]);
            model.borrow_mut().breaks = LINE_STATUS_BREAK;
            if is_seen_by_the_transmitter {
                uart.write(b"x");
            }
            assert_eq!(uart.interrupt(), Events { received: 2, breaks: 1, ..Events::default() });
        }
        let mut buffer = [7; 9];
        assert_eq!(uart.read(&mut buffer), 6);
        assert_eq!(buffer, [0, 1, 2, 0, 2, 0, 7, 7, 7]);
    }

    #[test]
    fn input_is_kept_until_it_is_read_and_counted_when_lost() {
        let model = RefCell::new(Model::default());
        let mut uart = Uart::new(Fake(&model, 0), 0);
        model.borrow_mut().input.extend(b"hello");
        assert_eq!(uart.interrupt(), Events { received: 5, ..Events::default() });
        let mut buffer = [0; 3];
        assert_eq!(uart.read(&mut buffer), 3);
        assert_eq!(&buffer, b"hel");
        assert_eq!(uart.read(&mut buffer), 2);
        assert_eq!(uart.read(&mut buffer), 0);
        for _ in 0..5 {
            model.borrow_mut().input.extend([1; 250]);
            uart.interrupt();
        }
        assert_eq!(uart.received(), 1024);
        assert_eq!(uart.lost(), 5 * 250 - 1024);
    }
}
