//! UARTs: the 16550, and SiFive's.
//!
//! Own code and not the crate `uart_16550`: that crate polls, its interface to registers requires `unsafe` of every
//! implementer, and a console needs five registers. The registers are those of National Semiconductor's PC16550D data
//! sheet, and of the SiFive FU540-C000 manual, chapter "Universal Asynchronous Receiver/Transmitter".
//!
//! Output goes to a ring that the transmitter's interrupt empties, 16 bytes at a time; input comes from the receiver's
//! interrupt into another ring. The transmitter's interrupt is enabled only while the ring holds bytes: an idle
//! transmitter would otherwise interrupt for ever. The line's speed stays as the firmware set it.
//!
//! Only a [line](self::line) knows which of the devices it is.

mod line;

use crate::Registers;
use crate::ring::Ring;
use line::{Line, Received, Transmitting};

pub use line::UartKind;

/// Number of bytes that the transmitter is given at once.
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
#[doc(alias = "sifive,uart0")]
pub struct Uart<R> {
    line: Line<R>,
    transmit: Ring<4096>,
    receive: Ring<1024>,
    transmitting: Transmitting,
    patience: Patience,
    lost: usize,
}

/// Number of looks at a busy transmitter before a byte is sent regardless.
#[derive(Clone, Copy, Debug)]
struct Patience(usize);

impl Patience {
    const FULL: Patience = Patience(POLLS);
}

/// Result of an interrupt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Number of received bytes.
    pub received: usize,
    /// Number of bytes that left for the transmitter, so that there is room again.
    pub sent: usize,
    /// Number of breaks: the line was held at zero for longer than a byte, which no byte can do. SiFive's UART reports
    /// none.
    pub breaks: usize,
}

impl<R: Registers> Uart<R> {
    /// Makes the driver of the UART behind these registers.
    pub const fn new(registers: R, kind: UartKind) -> Uart<R> {
        Uart {
            line: Line::new(registers, kind),
            transmit: Ring::new(),
            receive: Ring::new(),
            transmitting: Transmitting::Idle,
            patience: Patience::FULL,
            lost: 0,
        }
    }

    /// Sets up the device, with all interrupts off: eight bits, no parity, FIFOs on with what is in them.
    pub fn initialise(&mut self) {
        self.line.initialise();
    }

    /// Enables the device's interrupts. Before that, output is sent by polling.
    pub fn enable_interrupts(&mut self) {
        self.line.enable_interrupts(self.transmitting);
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
        self.line.acknowledge();
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
            send_polled(&self.line, byte, &mut self.patience);
        }
        for &byte in bytes {
            send_polled(&self.line, byte, &mut self.patience);
        }
    }

    /// Takes what has come, and returns the number of bytes and of breaks.
    fn drain_receiver(&mut self) -> (usize, usize) {
        let (mut count, mut breaks) = (0, 0);
        // A device that always has one more byte must not hold the hart.
        while count + breaks < RECEIVE_LIMIT {
            match self.line.receive() {
                Received::Nothing => break,
                Received::Break => breaks += 1,
                Received::Byte(byte) => {
                    if self.receive.push(byte).is_err() {
                        self.lost += 1;
                    }
                    count += 1;
                }
            }
        }
        (count, breaks)
    }

    /// Fills the transmitter if it has room, and enables its interrupt exactly if more work is left then.
    fn feed_transmitter(&mut self) {
        let mut left = FIFO_BYTES;
        'bytes: while left > 0 {
            let room = self.line.room().min(left);
            if room == 0 {
                break;
            }
            for _ in 0..room {
                let Some(byte) = self.transmit.pop() else { break 'bytes };
                self.line.send(byte);
            }
            left -= room;
        }
        let wanted = if self.transmit.is_empty() { Transmitting::Idle } else { Transmitting::Interrupting };
        if wanted != self.transmitting {
            self.transmitting = wanted;
            self.line.enable_interrupts(wanted);
        }
    }
}

/// Sends bytes by polling, bypassing a [`Uart`] over the same registers: for panics that cannot lock it.
pub fn write_polled(registers: impl Registers, kind: UartKind, bytes: &[u8]) {
    let line = Line::new(registers, kind);
    let mut patience = Patience::FULL;
    for &byte in bytes {
        send_polled(&line, byte, &mut patience);
    }
}

fn send_polled(line: &Line<impl Registers>, byte: u8, patience: &mut Patience) {
    let has_room = (0..patience.0).any(|_| {
        let has_room = line.is_ready();
        if !has_room {
            core::hint::spin_loop();
        }
        has_room
    });
    *patience = if has_room { Patience::FULL } else { Patience(1) };
    line.send(byte);
}

#[cfg(test)]
mod tests {
    use super::line::ns16550::{
        DATA, FIFO_CONTROL, FIFO_ENABLE, INTERRUPT_ENABLE, INTERRUPT_ENABLE_RECEIVED,
        INTERRUPT_ENABLE_TRANSMITTER_EMPTY, INTERRUPT_IDENTIFICATION, LINE_CONTROL, LINE_STATUS, LINE_STATUS_BREAK,
        LINE_STATUS_RECEIVED, LINE_STATUS_TRANSMITTER_EMPTY, MODEM_CONTROL,
    };
    use super::line::sifive;
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
                FIFO_CONTROL => assert_eq!(value, FIFO_ENABLE, "bytes that wait are not lost"),
                LINE_CONTROL | MODEM_CONTROL => {}
                register => panic!("register {register} is never written"),
            }
        }
        fn read16(&self, _: usize) -> u16 {
            panic!("the UART has 8-bit registers")
        }
        fn write16(&self, _: usize, _: u16) {
            panic!("the UART has 8-bit registers")
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
        let mut uart = Uart::new(Fake(&model, 2), UartKind::Ns16550 { shift: 2 });
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
        let mut uart = Uart::new(Fake(&model, 0), UartKind::Ns16550 { shift: 0 });
        assert_eq!(uart.write(&[7; 5000]), 4096);
        assert_eq!(uart.write(&[7]), 0);
        assert!(model.borrow().fifo.is_empty());
    }

    #[test]
    fn a_stalled_transmitter_costs_a_polling_writer_its_patience_once() {
        let model = RefCell::new(Model { busy: true, ..Model::default() });
        let mut uart = Uart::new(Fake(&model, 0), UartKind::Ns16550 { shift: 0 });
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
        write_polled(Fake(&model, 0), UartKind::Ns16550 { shift: 0 }, b"xyz");
        assert_eq!(model.borrow().looks - before, POLLS + 2, "a panic has patience of its own");
    }

    #[test]
    fn a_break_is_told_from_a_zero_whoever_reads_the_status_first() {
        let model = RefCell::new(Model::default());
        let mut uart = Uart::new(Fake(&model, 0), UartKind::Ns16550 { shift: 0 });
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
        let mut uart = Uart::new(Fake(&model, 0), UartKind::Ns16550 { shift: 0 });
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

    /// A model of SiFive's UART, with FIFOs of eight bytes, as its manual describes it.
    #[derive(Default)]
    struct SiFive {
        registers: std::collections::BTreeMap<usize, u32>,
        fifo: Vec<u8>,
        sent: Vec<u8>,
        input: VecDeque<u8>,
    }

    struct FakeSiFive<'a>(&'a RefCell<SiFive>);

    impl Registers for FakeSiFive<'_> {
        fn read8(&self, _: usize) -> u8 {
            panic!("SiFive's UART has 32-bit registers")
        }
        fn write8(&self, _: usize, _: u8) {
            panic!("SiFive's UART has 32-bit registers")
        }
        fn read16(&self, _: usize) -> u16 {
            panic!("SiFive's UART has 32-bit registers")
        }
        fn write16(&self, _: usize, _: u16) {
            panic!("SiFive's UART has 32-bit registers")
        }
        fn read32(&self, offset: usize) -> u32 {
            let mut model = self.0.borrow_mut();
            match offset {
                sifive::TRANSMIT_DATA => u32::from(model.fifo.len() == 8) << 31,
                sifive::RECEIVE_DATA => model.input.pop_front().map_or(1 << 31, u32::from),
                offset => panic!("the register at {offset:#x} is never read"),
            }
        }
        fn write32(&self, offset: usize, value: u32) {
            let mut model = self.0.borrow_mut();
            match offset {
                sifive::TRANSMIT_DATA => {
                    assert!(model.fifo.len() < 8, "the transmitter's FIFO overflows");
                    assert_eq!(model.registers[&sifive::TRANSMIT_CONTROL] & 1, 1, "the transmitter is off");
                    model.fifo.push(value as u8);
                }
                sifive::TRANSMIT_CONTROL | sifive::RECEIVE_CONTROL | sifive::INTERRUPT_ENABLE => {
                    model.registers.insert(offset, value);
                }
                offset => panic!("the register at {offset:#x} is never written"),
            }
        }
    }

    impl SiFive {
        /// Returns whether it interrupts.
        fn interrupts(&self) -> bool {
            let register = |offset| self.registers.get(&offset).copied().unwrap_or(0);
            let level = |offset| register(offset) as usize >> 16 & 7;
            let enabled = register(sifive::INTERRUPT_ENABLE);
            (enabled & sifive::INTERRUPT_ENABLE_TRANSMIT != 0 && self.fifo.len() < level(sifive::TRANSMIT_CONTROL))
                || (enabled & sifive::INTERRUPT_ENABLE_RECEIVE != 0
                    && self.input.len() > level(sifive::RECEIVE_CONTROL))
        }

        fn transmit(&mut self) {
            let fifo = std::mem::take(&mut self.fifo);
            self.sent.extend(fifo);
        }
    }

    #[test]
    fn sifives_uart_sends_and_receives_by_interrupts_that_stop() {
        let model = RefCell::new(SiFive::default());
        let mut uart = Uart::new(FakeSiFive(&model), UartKind::SiFive);
        uart.initialise();
        assert!(!model.borrow().interrupts());
        uart.enable_interrupts();
        assert!(!model.borrow().interrupts(), "an idle transmitter does not interrupt");
        let text: Vec<u8> = (0..100).collect();
        assert_eq!(uart.write(&text), 100);
        assert_eq!(model.borrow().fifo.len(), 8);
        assert!(!model.borrow().interrupts(), "the FIFO is full");
        let mut interrupts = 0;
        while uart.waiting() > 0 {
            model.borrow_mut().transmit();
            assert!(model.borrow().interrupts());
            uart.interrupt();
            interrupts += 1;
        }
        model.borrow_mut().transmit();
        assert!(!model.borrow().interrupts());
        assert_eq!((model.borrow().sent.clone(), interrupts), (text, 12));

        model.borrow_mut().input.extend(b"a\0b");
        assert!(model.borrow().interrupts());
        assert_eq!(uart.interrupt(), Events { received: 3, ..Events::default() });
        assert!(!model.borrow().interrupts());
        let mut buffer = [0; 4];
        assert_eq!(uart.read(&mut buffer), 3);
        assert_eq!(&buffer, b"a\0b\0");

        uart.write_polled(b"pan");
        write_polled(FakeSiFive(&model), UartKind::SiFive, b"ic");
        model.borrow_mut().transmit();
        assert!(model.borrow().sent.ends_with(b"panic"));
        assert!(UartKind::SiFive.length() > sifive::INTERRUPT_ENABLE as u64);
    }
}
