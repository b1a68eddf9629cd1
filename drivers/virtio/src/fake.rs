//! A fake virtio device in fake memory, strict about the driver's conduct.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

use drivers::{Registers, pci};

use crate::{Error, Memory, Transport};

const BASE: u64 = 0x8000_0000;
const PAGE: usize = 4096;

/// The memory of the fake machine.
#[derive(Clone, Default)]
pub struct Arena(pub Rc<RefCell<Vec<u8>>>, Rc<Cell<usize>>);

/// A piece of the arena.
pub struct Piece {
    arena: Arena,
    start: usize,
    length: usize,
}

impl Arena {
    pub fn allocate(&self, bytes: usize) -> Option<Piece> {
        let mut memory = self.0.borrow_mut();
        let (start, length) = (memory.len(), bytes.next_multiple_of(PAGE));
        memory.resize(start + length, 0);
        drop(memory);
        Some(Piece { arena: self.clone(), start, length })
    }

    /// Frees all memory beyond a number of bytes.
    pub fn truncate(&self, bytes: usize) {
        self.0.borrow_mut().truncate(bytes);
    }

    /// Returns the number of bytes that drivers have abandoned.
    pub fn abandoned(&self) -> usize {
        self.1.get()
    }

    fn bytes<const N: usize>(&self, address: u64) -> [u8; N] {
        let at = (address - BASE) as usize;
        self.0.borrow()[at..at + N].try_into().unwrap()
    }

    fn u16(&self, address: u64) -> u16 {
        u16::from_le_bytes(self.bytes(address))
    }

    fn u32(&self, address: u64) -> u32 {
        u32::from_le_bytes(self.bytes(address))
    }

    pub fn put(&self, address: u64, bytes: &[u8]) {
        let at = (address - BASE) as usize;
        self.0.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn get(&self, address: u64, length: usize) -> Vec<u8> {
        let at = (address - BASE) as usize;
        self.0.borrow()[at..at + length].to_vec()
    }
}

impl Memory for Piece {
    fn physical_address(&self) -> u64 {
        BASE + self.start as u64
    }

    fn length(&self) -> usize {
        self.length
    }

    fn load(&self, offset: usize) -> u32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.length);
        self.arena.u32(self.physical_address() + offset as u64)
    }

    fn store(&self, offset: usize, value: u32) {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.length);
        self.arena.put(self.physical_address() + offset as u64, &value.to_le_bytes());
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= self.length);
        into.copy_from_slice(&self.arena.get(self.physical_address() + offset as u64, into.len()));
    }

    fn write(&self, offset: usize, from: &[u8]) {
        assert!(offset + from.len() <= self.length);
        self.arena.put(self.physical_address() + offset as u64, from);
    }

    fn abandon(&mut self) {
        self.arena.1.set(self.arena.abandoned() + self.length);
        self.length = 0;
    }
}

#[derive(Clone, Copy, Default)]
pub struct FakeQueue {
    pub size: u16,
    descriptors: u64,
    available: u64,
    pub used: u64,
    seen: u16,
    pub done: u16,
}

/// Kind of the faked device.
#[derive(Clone, Copy)]
pub struct Model {
    pub kind: u32,
    pub version: u32,
    pub features: u64,
    pub largest_queue: u32,
}

pub struct State {
    pub arena: Arena,
    model: Model,
    status: u32,
    feature_half: u32,
    agreed: u64,
    selected: usize,
    pub queues: [FakeQueue; 2],
    pub interrupt: u32,
    pub interrupts: usize,
    pub notifications: usize,
    pub sent: VecDeque<Vec<u8>>,
    address: [u8; 6],
    pub link: u8,
    pub disk: FakeDisk,
    /// Whether it has reported unseen buffers as used: the driver is right to offer those once more.
    pub lies: bool,
    /// Whether it goes on when it is told to stop.
    pub goes_on: bool,
    /// Words of a function's configuration that were written, and the message of each queue.
    pub configuration: BTreeMap<usize, u32>,
    messages: [u16; 3],
}

/// A disk's contents and conduct.
#[derive(Default)]
pub struct FakeDisk {
    /// As it is read, and as it is after a loss of power.
    pub contents: Vec<u8>,
    pub lasting: Vec<u8>,
    /// Requests that were taken from the queue and not ended, unless `at_once`.
    pub waiting: Vec<Chain>,
    pub at_once: bool,
    /// The status of the next requests, instead of their own.
    pub statuses: VecDeque<u8>,
    /// Bytes of the configuration from offset 8 on.
    pub configuration: Vec<u8>,
}

/// A request as the device sees it.
#[derive(Clone, Debug)]
pub struct Chain {
    pub head: u16,
    /// Address, length and flags of each part.
    pub parts: Vec<(u64, u32, u16)>,
}

/// The registers of the fake device.
#[derive(Clone)]
pub struct Device(pub Rc<RefCell<State>>, Group);

/// The registers that are meant: a block of its own, or a group of those of a function of PCI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Block,
    Configuration,
    Common,
    Notifications,
    Interrupts,
    Own,
}

/// Versions of devices that are functions of PCI, with a wire or with messages.
pub const PCI: u32 = 3;
pub const PCI_WITH_MESSAGES: u32 = 4;

/// Identifies the device, in its block of registers or as a function.
pub fn probe(device: &Device) -> Result<Transport<Device>, Error> {
    let version = device.0.borrow().model.version;
    if version != PCI && version != PCI_WITH_MESSAGES {
        return Transport::probe(device.clone());
    }
    let mut window = pci::Window::new(0x4000_0000, 0x5000_0000, 1 << 20);
    let mut found = vec![];
    pci::enumerate(&device.at(Group::Configuration), 1, &mut window, &mut |function| found.push(function));
    Transport::of_function(&found[0], version == PCI_WITH_MESSAGES, |(address, _)| {
        Some(device.at(match address - 0x5000_0000 {
            0x0000 => Group::Common,
            0x1000 => Group::Interrupts,
            0x2000 => Group::Own,
            0x3000 => Group::Notifications,
            other => panic!("no registers are at {other:#x}"),
        }))
    })
}

pub const MODERN: u64 = 1 << 32;
pub const ANY_LAYOUT: u64 = 1 << 27;
pub const EVENT_INDEX: u64 = 1 << 29;
pub const INDIRECT: u64 = 1 << 28;
pub const CHECKSUM: u64 = 1;
pub const ADDRESS: u64 = 1 << 5;
pub const STATUS: u64 = 1 << 16;

impl Device {
    pub fn new(model: Model, last: u8) -> Device {
        Device(
            Rc::new(RefCell::new(State {
                arena: Arena::default(),
                model,
                status: 0,
                feature_half: 0,
                agreed: 0,
                selected: 0,
                queues: Default::default(),
                interrupt: 0,
                interrupts: 0,
                notifications: 0,
                sent: VecDeque::new(),
                address: [2, 0, 0, 0, 0, last],
                link: 1,
                disk: FakeDisk::default(),
                lies: false,
                goes_on: false,
                configuration: BTreeMap::new(),
                messages: [u16::MAX; 3],
            })),
            Group::Block,
        )
    }

    fn at(&self, group: Group) -> Device {
        Device(self.0.clone(), group)
    }

    pub fn network(version: u32, features: u64) -> Device {
        let common = if version == 1 { ANY_LAYOUT } else { MODERN };
        let features = features | common | ADDRESS;
        Device::new(Model { kind: 1, version, features, largest_queue: 1024 }, 1)
    }

    pub fn disk(version: u32, features: u64, sectors: usize) -> Device {
        let common = if version == 1 { ANY_LAYOUT } else { MODERN };
        let device =
            Device::new(Model { kind: 2, version, features: features | common | INDIRECT, largest_queue: 1024 }, 1);
        let mut state = device.0.borrow_mut();
        state.disk.contents = vec![0; 512 * sectors];
        state.disk.lasting = state.disk.contents.clone();
        state.disk.at_once = true;
        state.disk.configuration = vec![0; 60];
        drop(state);
        device
    }

    /// A folder that answers at once or not.
    pub fn folder(version: u32, features: u64, at_once: bool) -> Device {
        let common = if version == 1 { ANY_LAYOUT } else { MODERN };
        let features = features | common | INDIRECT;
        let device = Device::new(Model { kind: 9, version, features, largest_queue: 128 }, 1);
        device.0.borrow_mut().disk.at_once = at_once;
        device
    }

    /// Ends a request that waits, in whatever order.
    pub fn end_one(&self, place: usize) {
        let mut state = self.0.borrow_mut();
        let chain = state.disk.waiting.remove(place);
        state.carry_out(&chain);
    }

    pub fn allocator(&self) -> impl FnMut(usize) -> Option<Piece> + use<> {
        let arena = self.0.borrow().arena.clone();
        move |bytes| arena.allocate(bytes)
    }

    /// Delivers a frame from the wire; returns `false` if the driver has offered no buffer.
    pub fn deliver(&self, frame: &[u8]) -> bool {
        self.0.borrow_mut().deliver(frame)
    }

    pub fn header(&self) -> usize {
        if self.0.borrow().agreed & MODERN != 0 { 12 } else { 10 }
    }

    pub fn take_sent(&self) -> Option<Vec<u8>> {
        self.0.borrow_mut().sent.pop_front()
    }
}

impl State {
    fn event_index(&self) -> bool {
        self.agreed & EVENT_INDEX != 0
    }

    fn next(&mut self, queue: usize) -> Option<(u16, u64, u32, u16)> {
        let state = &mut self.queues[queue];
        let index = self.arena.u16(state.available + 2);
        if index == state.seen {
            return None;
        }
        if index.wrapping_sub(state.seen) > state.size {
            assert!(self.lies, "more offered than there is room for");
            return None;
        }
        let slot = u64::from(state.seen % state.size);
        let head = self.arena.u16(state.available + 4 + 2 * slot);
        assert!(head < state.size);
        let descriptor = state.descriptors + 16 * u64::from(head);
        let address = u64::from_le_bytes(self.arena.bytes(descriptor));
        let length = self.arena.u32(descriptor + 8);
        let flags = self.arena.u16(descriptor + 12);
        state.seen = state.seen.wrapping_add(1);
        Some((head, address, length, flags))
    }

    fn finish(&mut self, queue: usize, head: u16, length: u32) {
        let event_index = self.event_index();
        let state = &mut self.queues[queue];
        let slot = u64::from(state.done % state.size);
        self.arena.put(state.used + 4 + 8 * slot, &u32::from(head).to_le_bytes());
        self.arena.put(state.used + 8 + 8 * slot, &length.to_le_bytes());
        let old = state.done;
        state.done = state.done.wrapping_add(1);
        self.arena.put(state.used + 2, &state.done.to_le_bytes());
        let wanted = if event_index {
            let event = self.arena.u16(state.available + 4 + 2 * u64::from(state.size));
            event == old
        } else {
            self.arena.u16(state.available) & 1 == 0
        };
        if wanted {
            self.interrupt |= 1;
            self.interrupts += 1;
        }
    }

    fn deliver(&mut self, frame: &[u8]) -> bool {
        let header = if self.agreed & MODERN != 0 { 12 } else { 10 };
        let Some((head, address, length, flags)) = self.next(0) else {
            return false;
        };
        assert_eq!(flags, 2, "a receive buffer is for the device to write");
        let mut bytes = vec![0; header];
        bytes.extend_from_slice(frame);
        assert!(bytes.len() <= length as usize);
        self.arena.put(address, &bytes);
        self.finish(0, head, bytes.len() as u32);
        true
    }

    /// Reacts to a notification as the device does: takes all buffers, and goes to sleep.
    fn wake(&mut self, queue: usize) {
        self.notifications += 1;
        if self.model.kind == 4 {
            while let Some((head, address, length, flags)) = self.next(0) {
                assert_eq!(flags, 2);
                self.arena.put(address, &vec![0x5a; length as usize]);
                self.finish(0, head, length);
            }
        } else if self.model.kind == 2 || self.model.kind == 9 {
            self.take_requests();
        } else if queue == 1 {
            while let Some((head, address, length, flags)) = self.next(1) {
                assert_eq!(flags, 0, "a frame to be sent is for the device to read");
                self.sent.push_back(self.arena.get(address, length as usize));
                self.finish(1, head, 0);
            }
        }
        if self.event_index() {
            let state = self.queues[queue];
            self.arena.put(state.used + 4 + 8 * u64::from(state.size), &state.seen.to_le_bytes());
        }
    }

    fn take_requests(&mut self) {
        while let Some((head, table, length, flags)) = self.next(0) {
            assert_eq!((flags, length % 16), (4, 0), "a request is a table of descriptors");
            let mut parts = vec![];
            for entry in 0..u64::from(length / 16) {
                let at = table + 16 * entry;
                let address = u64::from_le_bytes(self.arena.bytes(at));
                let (bytes, flags, next) = (self.arena.u32(at + 8), self.arena.u16(at + 12), self.arena.u16(at + 14));
                parts.push((address, bytes, flags & 2));
                match flags & 1 {
                    0 => break,
                    _ => assert_eq!(u64::from(next), entry + 1),
                }
            }
            assert_eq!(parts.len() as u32, length / 16, "the table ends with its last descriptor");
            let chain = Chain { head, parts };
            if self.disk.at_once {
                self.carry_out(&chain);
            } else {
                self.disk.waiting.push(chain);
            }
        }
    }

    /// Carries a request out as a disk with a cache does.
    fn carry_out(&mut self, chain: &Chain) {
        if self.model.kind == 9 {
            return self.answer(chain);
        }
        let [(header, 16, 0), data @ .., (status, 1, 2)] = &chain.parts[..] else {
            panic!("a request has a header and a status: {chain:?}");
        };
        let (kind, sector) = (self.arena.u32(*header), u64::from_le_bytes(self.arena.bytes(header + 8)));
        let mut at = 512 * sector as usize;
        let mut written = 1;
        let outcome = self.disk.statuses.pop_front().unwrap_or(0);
        if outcome == 0 {
            for (address, length, flags) in data {
                let length = *length as usize;
                match kind {
                    0 => {
                        assert_eq!(*flags, 2);
                        self.arena.put(*address, &self.disk.contents[at..at + length]);
                        written += length as u32;
                    }
                    1 => {
                        assert_eq!(*flags, 0);
                        self.disk.contents[at..at + length].copy_from_slice(&self.arena.get(*address, length));
                    }
                    11 | 13 => {
                        assert_eq!((*flags, length, data.len(), sector), (0, 16, 1, 0));
                        let from = 512 * u64::from_le_bytes(self.arena.bytes(*address)) as usize;
                        let until = from + 512 * self.arena.u32(address + 8) as usize;
                        assert_eq!(self.arena.u32(address + 12), 0);
                        let fill = if kind == 13 { 0 } else { 0xdd };
                        self.disk.contents[from..until].fill(fill);
                    }
                    kind => panic!("a request of kind {kind} with data"),
                }
                at += length;
            }
            match kind {
                4 => self.disk.lasting = self.disk.contents.clone(),
                _ => assert!(!data.is_empty()),
            }
        }
        self.arena.put(*status, &[outcome]);
        self.finish(0, chain.head, written);
    }

    /// Answers a message with its bytes from the last one on, after a header.
    fn answer(&mut self, chain: &Chain) {
        let [(message, length, 0), (answer, room, 2)] = chain.parts[..] else {
            panic!("a message has room for an answer: {chain:?}");
        };
        let mut bytes = vec![9; 7];
        bytes.extend(self.arena.get(message, length as usize).into_iter().rev());
        bytes.truncate(room as usize);
        self.arena.put(answer, &bytes);
        self.finish(0, chain.head, bytes.len() as u32);
    }

    fn write(&mut self, offset: usize, value: u32) {
        let selected = self.selected;
        let half = |old: u64, high: bool| {
            if high { old & 0xffff_ffff | u64::from(value) << 32 } else { old & !0xffff_ffff | u64::from(value) }
        };
        match offset {
            0x014 | 0x024 => self.feature_half = value,
            0x020 => {
                self.agreed = half(self.agreed, self.feature_half == 1);
                assert_eq!(self.agreed & !self.model.features, 0, "a feature that was not offered");
            }
            0x028 => assert_eq!(value, 4096),
            0x030 => self.selected = value as usize,
            0x038 => self.queues[selected].size = value as u16,
            0x03c => assert_eq!(value, 4096),
            0x040 => {
                assert_eq!(self.model.version, 1);
                let queue = &mut self.queues[selected];
                queue.descriptors = u64::from(value) * 4096;
                queue.available = queue.descriptors + 16 * u64::from(queue.size);
                queue.used = (queue.available + 6 + 2 * u64::from(queue.size)).next_multiple_of(4096);
            }
            0x044 => assert!(self.model.version >= 2),
            0x050 => {
                assert!(self.status & 4 != 0, "told of something before it began");
                self.wake(value as usize);
            }
            0x064 => self.interrupt &= !value,
            0x070 if value == 0 && self.goes_on => {}
            0x070 => {
                if value == 0 {
                    self.queues = Default::default();
                    self.agreed = 0;
                }
                self.status = value;
            }
            0x080 | 0x084 => {
                self.queues[selected].descriptors = half(self.queues[selected].descriptors, offset == 0x084);
            }
            0x090 | 0x094 => {
                self.queues[selected].available = half(self.queues[selected].available, offset == 0x094);
            }
            0x0a0 | 0x0a4 => {
                self.queues[selected].used = half(self.queues[selected].used, offset == 0x0a4);
            }
            _ => panic!("a write to {offset:#x}"),
        }
    }

    fn read(&self, offset: usize) -> u32 {
        match offset {
            0x000 => 0x7472_6976,
            0x004 => self.model.version,
            0x008 => self.model.kind,
            0x010 => (self.model.features >> (32 * self.feature_half)) as u32,
            0x034 => self.model.largest_queue,
            0x060 => self.interrupt,
            0x070 => self.status,
            _ => panic!("a read from {offset:#x}"),
        }
    }
}

impl State {
    /// Reads a word of a function's configuration.
    fn configuration(&self, offset: usize) -> u32 {
        let capability = |kind: u32, next: u32| kind << 24 | 0x10_0009 | next << 8;
        match offset {
            0x00 => 0x1040_1af4 + (self.model.kind << 16),
            0x04 => 1 << 20 | self.configuration.get(&4).copied().unwrap_or(0),
            0x20 => self.configuration.get(&0x20).copied().unwrap_or(0) & 0xffff_c000 | 4,
            0x24 => self.configuration.get(&0x24).copied().unwrap_or(0),
            0x34 => 0x40,
            0x3c => 0x100,
            0x40 => capability(1, 0x50),
            0x50 => capability(3, 0x60),
            0x60 => capability(4, 0x70),
            0x70 => capability(2, 0),
            0x44 | 0x54 | 0x64 | 0x74 => 4,
            // The place of the common registers.
            0x48 => self.configuration.get(&0x48).copied().unwrap_or(0),
            0x58 => 0x1000,
            0x68 => 0x2000,
            0x78 => 0x3000,
            0x4c => 0x38,
            0x5c => 1,
            0x6c => 0x100,
            0x7c => 0x20,
            0x80 => 4,
            _ if offset >= 4096 && offset.is_multiple_of(4096) => u32::MAX,
            _ => 0,
        }
    }

    /// Reads a byte of the device's own configuration.
    fn own(&self, offset: usize) -> u8 {
        if self.model.kind == 2 {
            let capacity = (self.disk.contents.len() / 512) as u64;
            return [&capacity.to_le_bytes()[..], &self.disk.configuration].concat()[offset];
        }
        if self.model.kind == 9 {
            return b"\x04\0host\0\0"[offset];
        }
        match offset {
            0..6 => self.address[offset],
            6 => self.link,
            _ => panic!("a read of the configuration's byte {offset}"),
        }
    }

    /// Reads a word of the device's own configuration.
    fn own_word(&self, offset: usize) -> u32 {
        assert!(offset.is_multiple_of(4));
        u32::from_le_bytes([0, 1, 2, 3].map(|byte| self.own(offset + byte)))
    }

    /// Returns the message of a queue, or of the configuration.
    fn message(&mut self, register: usize) -> &mut u16 {
        &mut self.messages[if register == 0x10 { 2 } else { self.selected }]
    }
}

impl Registers for Device {
    fn read8(&self, offset: usize) -> u8 {
        let mut state = self.0.borrow_mut();
        match (self.1, offset) {
            (Group::Block, 0x100..) => state.own(offset - 0x100),
            (Group::Own, _) => state.own(offset),
            (Group::Common, 0x14) => state.read(0x070) as u8,
            // Reading clears it.
            (Group::Interrupts, 0) => core::mem::take(&mut state.interrupt) as u8,
            (group, _) => panic!("a read of one byte from {offset:#x} of {group:?}"),
        }
    }

    fn write8(&self, offset: usize, value: u8) {
        match (self.1, offset) {
            (Group::Common, 0x14) => {
                let mut state = self.0.borrow_mut();
                if value == 0 {
                    state.messages = [u16::MAX; 3];
                }
                state.write(0x070, value.into());
            }
            (group, _) => panic!("a write of one byte to {offset:#x} of {group:?}"),
        }
    }

    fn read16(&self, offset: usize) -> u16 {
        let mut state = self.0.borrow_mut();
        match (self.1, offset) {
            (Group::Common, 0x18) => state.read(0x034) as u16,
            (Group::Common, 0x1e) => state.selected as u16,
            (Group::Common, 0x10 | 0x1a) => *state.message(offset),
            (group, _) => panic!("a read of two bytes from {offset:#x} of {group:?}"),
        }
    }

    fn write16(&self, offset: usize, value: u16) {
        let mut state = self.0.borrow_mut();
        match (self.1, offset) {
            (Group::Common, 0x16) => state.write(0x030, value.into()),
            (Group::Common, 0x18) => state.write(0x038, value.into()),
            (Group::Common, 0x10 | 0x1a) => *state.message(offset) = value,
            (Group::Common, 0x1c) => {
                let has_message = state.messages[state.selected] == 0 && state.messages[2] == 0;
                assert_eq!(has_message, state.model.version == PCI_WITH_MESSAGES);
                state.write(0x044, value.into());
            }
            (Group::Notifications, _) => {
                assert_eq!(offset, 4 * usize::from(value), "the register is another queue's");
                state.write(0x050, value.into());
            }
            (group, _) => panic!("a write of two bytes to {offset:#x} of {group:?}"),
        }
    }

    fn read32(&self, offset: usize) -> u32 {
        let state = self.0.borrow();
        match (self.1, offset) {
            (Group::Block, 0x100..) => state.own_word(offset - 0x100),
            (Group::Own, _) => state.own_word(offset),
            (Group::Block, _) => state.read(offset),
            (Group::Configuration, _) => state.configuration(offset),
            (Group::Common, 0x04) => state.read(0x010),
            (group, _) => panic!("a read of four bytes from {offset:#x} of {group:?}"),
        }
    }

    fn write32(&self, offset: usize, value: u32) {
        let mut state = self.0.borrow_mut();
        match (self.1, offset) {
            (Group::Block, _) => state.write(offset, value),
            (Group::Configuration, _) => _ = state.configuration.insert(offset, value),
            (Group::Common, 0x00) => state.write(0x014, value),
            (Group::Common, 0x08) => state.write(0x024, value),
            (Group::Common, 0x0c) => state.write(0x020, value),
            (Group::Common, 0x20 | 0x24) => state.write(offset + 0x60, value),
            (Group::Common, 0x28 | 0x2c) => state.write(offset + 0x68, value),
            (Group::Common, 0x30 | 0x34) => state.write(offset + 0x70, value),
            (group, _) => panic!("a write of four bytes to {offset:#x} of {group:?}"),
        }
    }
}
