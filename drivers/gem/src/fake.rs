//! A fake controller in fake memory, strict about the driver's conduct.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

use drivers::{Memory, Registers};

use crate::register;

const PAGE: usize = 4096;

/// The fake machine: a device and memory.
pub struct State {
    /// Address of the memory, beyond the reach of 32 bits for a device with wide descriptors.
    base: u64,
    memory: Vec<u8>,
    registers: BTreeMap<usize, u32>,
    /// Position in the rings.
    receiving: usize,
    transmitting: usize,
    /// Whether it has read ahead, and the descriptor was not free.
    is_short: bool,
    pub sent: Vec<Vec<u8>>,
    /// Frames that found no free descriptor.
    pub dropped: usize,
    /// Registers of the PHY at address 7.
    pub phy: BTreeMap<u32, u16>,
    /// Whether the management interface never ends an access.
    pub hangs: bool,
    /// Whether it gives sent descriptors back.
    pub is_stalled: bool,
    managed: u32,
}

/// The registers of the fake device.
#[derive(Clone)]
pub struct Device(pub Rc<RefCell<State>>);

/// A piece of the fake machine's memory.
pub struct Piece {
    device: Device,
    start: usize,
    length: usize,
}

impl Device {
    /// A device with this word of abilities and this address.
    pub fn new(design: u32, address: [u8; 6]) -> Device {
        let [a, b, c, d, e, f] = address;
        let registers = [
            (register::IDENTITY, 0x0007_0109),
            (register::DESIGN_6, design),
            (register::ADDRESS_BOTTOM, u32::from_le_bytes([a, b, c, d])),
            (register::ADDRESS_TOP, u32::from_le_bytes([e, f, 0, 0])),
        ];
        Device(Rc::new(RefCell::new(State {
            base: if design & register::design::WIDE_ADDRESSES != 0 { 0x10_8000_0000 } else { 0x8000_0000 },
            memory: Vec::new(),
            registers: registers.into(),
            receiving: 0,
            transmitting: 0,
            is_short: false,
            sent: Vec::new(),
            dropped: 0,
            phy: BTreeMap::new(),
            hangs: false,
            is_stalled: false,
            managed: 0,
        })))
    }

    pub fn allocate(&self, bytes: usize) -> Option<Piece> {
        let mut state = self.0.borrow_mut();
        let (start, length) = (state.memory.len(), bytes.next_multiple_of(PAGE));
        state.memory.resize(start + length, 0);
        Some(Piece { device: self.clone(), start, length })
    }

    pub fn move_memory(&self, base: u64) {
        self.0.borrow_mut().base = base;
    }

    pub fn register(&self, offset: usize) -> u32 {
        self.0.borrow().register(offset)
    }

    pub fn set_register(&self, offset: usize, value: u32) {
        self.0.borrow_mut().registers.insert(offset, value);
    }

    /// Returns whether it interrupts.
    pub fn interrupts(&self) -> bool {
        let state = self.0.borrow();
        state.register(register::INTERRUPT_STATUS) & state.register(register::INTERRUPT_ENABLE) != 0
    }

    /// A frame comes on the line; returns whether the device has taken it.
    pub fn deliver(&self, frame: &[u8]) -> bool {
        // Whole, in one buffer.
        self.deliver_as(frame, frame.len() as u32 | 3 << 14)
    }

    /// Delivers a frame with these flags in the descriptor.
    pub fn deliver_as(&self, frame: &[u8], flags: u32) -> bool {
        let mut state = self.0.borrow_mut();
        if state.register(register::NETWORK_CONTROL) & register::control::RECEIVE == 0 {
            return false;
        }
        let ring = state.address(register::RECEIVE_QUEUE, register::RECEIVE_QUEUE_TOP);
        let at = ring + (state.receiving * state.stride()) as u64;
        let word = state.word(at);
        if state.is_short || word & 1 != 0 {
            // It has read ahead, and looks again when it is told to.
            state.is_short = true;
            state.dropped += 1;
            state.set_bits(register::RECEIVE_STATUS, register::NO_BUFFER);
            state.set_bits(register::INTERRUPT_STATUS, register::interrupt::NO_BUFFER);
            return false;
        }
        let size = (state.register(register::DMA_CONFIGURATION) >> 16 & 0xff) as usize * 64;
        let buffer = u64::from(word & !3) | state.upper_half(at);
        assert!(frame.len() <= size, "the model receives no frame in parts");
        state.put(buffer, frame);
        state.put(at + 4, &flags.to_le_bytes());
        state.put(at, &(word | 1).to_le_bytes());
        state.receiving = if word & 2 != 0 { 0 } else { state.receiving + 1 };
        state.set_bits(register::INTERRUPT_STATUS, register::interrupt::RECEIVED);
        true
    }

    /// Gives back descriptors of frames that it has sent, if it had stalled.
    pub fn go_on(&self) {
        let mut state = self.0.borrow_mut();
        state.is_stalled = false;
        state.transmit();
    }
}

impl State {
    fn register(&self, offset: usize) -> u32 {
        self.registers.get(&offset).copied().unwrap_or(0)
    }

    fn set_bits(&mut self, offset: usize, bits: u32) {
        *self.registers.entry(offset).or_default() |= bits;
    }

    fn is_wide(&self) -> bool {
        self.register(register::DMA_CONFIGURATION) & register::dma::WIDE_ADDRESSES != 0
    }

    fn stride(&self) -> usize {
        if self.is_wide() { 16 } else { 8 }
    }

    fn address(&self, low: usize, high: usize) -> u64 {
        let high = if self.is_wide() { u64::from(self.register(high)) << 32 } else { 0 };
        high | u64::from(self.register(low))
    }

    fn upper_half(&self, descriptor: u64) -> u64 {
        if self.is_wide() { u64::from(self.word(descriptor + 8)) << 32 } else { 0 }
    }

    fn get(&self, address: u64, length: usize) -> Vec<u8> {
        let at = (address - self.base) as usize;
        self.memory[at..at + length].to_vec()
    }

    pub fn word(&self, address: u64) -> u32 {
        u32::from_le_bytes(self.get(address, 4).try_into().unwrap())
    }

    fn put(&mut self, address: u64, bytes: &[u8]) {
        let at = (address - self.base) as usize;
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn transmit(&mut self) {
        let ring = self.address(register::TRANSMIT_QUEUE, register::TRANSMIT_QUEUE_TOP);
        while !self.is_stalled {
            let at = ring + (self.transmitting * self.stride()) as u64;
            let flags = self.word(at + 4);
            if flags & 1 << 31 != 0 {
                break;
            }
            assert!(flags & 1 << 15 != 0, "every frame is in one buffer");
            let length = (flags & 0x3fff) as usize;
            assert!(length > 0);
            let buffer = u64::from(self.word(at)) | self.upper_half(at);
            let frame = self.get(buffer, length);
            self.sent.push(frame);
            self.put(at + 4, &(flags | 1 << 31).to_le_bytes());
            self.transmitting = if flags & 1 << 30 != 0 { 0 } else { self.transmitting + 1 };
            self.set_bits(register::INTERRUPT_STATUS, register::interrupt::SENT);
        }
    }

    fn manage(&self, request: u32) -> u32 {
        assert_eq!(request >> 30, 1, "clause 22");
        assert_eq!(request >> 28 & 3, 2, "the driver only reads");
        let (phy, register) = (request >> 23 & 31, request >> 18 & 31);
        let value = match phy {
            7 => self.phy.get(&register).copied().unwrap_or(if self.phy.is_empty() { u16::MAX } else { 0 }),
            _ => u16::MAX,
        };
        request & 0xffff_0000 | u32::from(value)
    }
}

impl Registers for Device {
    fn read8(&self, _: usize) -> u8 {
        panic!("this device has 32-bit registers")
    }

    fn write8(&self, _: usize, _: u8) {
        panic!("this device has 32-bit registers")
    }

    fn read16(&self, _: usize) -> u16 {
        panic!("this device has 32-bit registers")
    }

    fn write16(&self, _: usize, _: u16) {
        panic!("this device has 32-bit registers")
    }

    fn read32(&self, offset: usize) -> u32 {
        let mut state = self.0.borrow_mut();
        match offset {
            register::NETWORK_STATUS if state.hangs => 0,
            register::NETWORK_STATUS => register::MANAGEMENT_IDLE,
            register::PHY_MAINTENANCE => state.manage(state.managed),
            // Cleared as it is read.
            register::INTERRUPT_STATUS => state.registers.remove(&offset).unwrap_or(0),
            register::INTERRUPT_ENABLE | register::INTERRUPT_DISABLE => panic!("{offset:#x} is never read"),
            _ => state.register(offset),
        }
    }

    fn write32(&self, offset: usize, value: u32) {
        let mut state = self.0.borrow_mut();
        match offset {
            register::NETWORK_CONTROL => {
                if value & register::control::TRANSMIT == 0 {
                    state.transmitting = 0;
                }
                let kept = value & !(register::control::START_TRANSMISSION | register::control::CLEAR_STATISTICS);
                state.registers.insert(offset, kept);
                if value & register::control::RECEIVE != 0 {
                    state.is_short = false;
                }
                if value & register::control::START_TRANSMISSION != 0 {
                    assert_ne!(value & register::control::TRANSMIT, 0);
                    state.transmit();
                }
            }
            register::TRANSMIT_STATUS | register::RECEIVE_STATUS => {
                *state.registers.entry(offset).or_default() &= !value;
            }
            register::INTERRUPT_STATUS => {}
            register::INTERRUPT_ENABLE => state.set_bits(offset, value),
            register::INTERRUPT_DISABLE => {
                *state.registers.entry(register::INTERRUPT_ENABLE).or_default() &= !value;
            }
            register::PHY_MAINTENANCE => {
                assert_ne!(state.register(register::NETWORK_CONTROL) & register::control::MANAGEMENT, 0);
                state.managed = value;
            }
            register::RECEIVE_QUEUE => {
                state.receiving = 0;
                state.registers.insert(offset, value);
            }
            register::TRANSMIT_QUEUE => {
                state.transmitting = 0;
                state.registers.insert(offset, value);
            }
            _ => _ = state.registers.insert(offset, value),
        }
    }
}

impl Piece {
    /// Writes a word as a device that lies.
    pub fn spoil(device: &Device, at: usize, value: u32) {
        let mut state = device.0.borrow_mut();
        let length = state.memory.len() / 4 * 4;
        let at = at % length / 4 * 4;
        state.memory[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
}

impl Memory for Piece {
    fn physical_address(&self) -> u64 {
        self.device.0.borrow().base + self.start as u64
    }

    fn length(&self) -> usize {
        self.length
    }

    fn load(&self, offset: usize) -> u32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.length);
        self.device.0.borrow().word(self.physical_address() + offset as u64)
    }

    fn store(&self, offset: usize, value: u32) {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.length);
        let address = self.physical_address() + offset as u64;
        self.device.0.borrow_mut().put(address, &value.to_le_bytes());
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= self.length);
        into.copy_from_slice(&self.device.0.borrow().get(self.physical_address() + offset as u64, into.len()));
    }

    fn write(&self, offset: usize, from: &[u8]) {
        assert!(offset + from.len() <= self.length);
        let address = self.physical_address() + offset as u64;
        self.device.0.borrow_mut().put(address, from);
    }

    fn abandon(&mut self) {
        self.length = 0;
    }
}

/// Registers of a PHY that has agreed on full duplex at this speed, in Mbit/s.
pub fn negotiated(speed: u32) -> BTreeMap<u32, u16> {
    let partner = match speed {
        10 => 1 << 6,
        100 => 1 << 6 | 1 << 8,
        _ => 1 << 6 | 1 << 8,
    };
    let gigabit = if speed == 1000 { 1 << 11 } else { 0 };
    let all = vec![(1, 1 << 8 | 1 << 5 | 1 << 2), (2, 0x141), (4, 0x1e1), (5, partner), (9, 1 << 9), (10, gigabit)];
    all.into_iter().collect()
}
