//! PCI Express: the functions behind a host bridge, found by the enhanced configuration access mechanism (PCI Express
//! Base Specification, sections 7.2.2 and 7.5.1), with addresses for their registers.
//!
//! Firmware may have given addresses and numbers of buses, or not: without firmware of a PC's kind nothing has them. So
//! [`enumerate`] gives all of them anew, each bridge a window that holds what is behind it. It is called once, before
//! any function is used.
//!
//! All that a function says of itself is an allegation: lists end after as many steps as they can have places, and a
//! region that does not fit gets no address.

use crate::Registers;

/// Bytes of one function's configuration.
const FUNCTION: usize = 4096;
/// Bytes of the configurations of a bus.
pub const BUS: u64 = 256 * FUNCTION as u64;
/// Number of a function's address registers.
pub const REGIONS: usize = 6;
/// Number of a bridge's address registers.
const REGIONS_OF_BRIDGE: usize = 2;
/// Most bridges between the host and a function.
const MOST_BRIDGES: usize = 8;
/// Most capabilities that a function's first 256 bytes can hold.
const MOST_CAPABILITIES: usize = 48;
/// Windows of bridges begin and end at multiples of this.
const GRANULE: u64 = 1 << 20;

mod register {
    pub const IDENTITY: usize = 0x00;
    pub const COMMAND: usize = 0x04;
    pub const HEADER: usize = 0x0c;
    pub const REGION: usize = 0x10;
    pub const SUBSYSTEM: usize = 0x2c;
    pub const CAPABILITIES: usize = 0x34;
    pub const PIN: usize = 0x3c;
    /// Of a bridge: the buses on its two sides, and the last one behind it.
    pub const BUSES: usize = 0x18;
    /// Of a bridge: first and last granule of the memory behind it.
    pub const MEMORY: usize = 0x20;
    /// Of a bridge: the same of memory that may be read ahead.
    pub const PREFETCHED: usize = 0x24;
}

mod command {
    pub const MEMORY: u32 = 1 << 1;
    pub const MASTER: u32 = 1 << 2;
    /// The function must not use its wire.
    pub const NO_WIRE: u32 = 1 << 10;
    /// Status: there is a list of capabilities.
    pub const HAS_CAPABILITIES: u32 = 1 << 20;
    /// The bits of the status, which are cleared by writing them.
    pub const STATUS: u32 = 0xffff_0000;
}

/// A window that is empty: its first granule is behind its last.
const EMPTY_WINDOW: u32 = 0x0000_fff0;

/// Kinds of capabilities (PCI Code and ID Assignment Specification).
pub mod capability {
    /// The vendor's own.
    pub const VENDOR: u8 = 0x09;
    /// Interrupts by messages from a table (MSI-X).
    pub const MESSAGES: u8 = 0x11;
}

/// Physical address and bytes of a region of a function's registers.
pub type Region = (u64, u64);

/// A function of a device.
#[derive(Clone, Copy, Debug)]
pub struct Function<R> {
    registers: R,
    /// Its place at the host: bus, device, function.
    place: (u8, u8, u8),
    /// The device on the first bus, and its wire for interrupts, 1 to 4: what a map of the host's interrupts names.
    wire: Option<(u8, u8)>,
    regions: [Option<Region>; REGIONS],
}

/// Addresses on the bus that the host passes to functions, which have 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    next: u64,
    end: u64,
    /// Physical address of the bus's address 0, modulo 2^64.
    offset: u64,
}

impl Window {
    /// Creates a window of this first address on the bus, which physical address `physical` reaches.
    pub fn new(start: u64, physical: u64, length: u64) -> Window {
        let end = start.saturating_add(length).min(1 << 32);
        // Address 0 stands for none.
        Window { next: start.max(GRANULE), end, offset: physical.wrapping_sub(start) }
    }

    fn take(&mut self, size: u64) -> Option<u64> {
        let start = self.next.checked_next_multiple_of(size)?;
        self.next = start.checked_add(size).filter(|end| *end <= self.end)?;
        Some(start)
    }

    /// Goes on at the next granule.
    fn align(&mut self) {
        self.next = self.next.next_multiple_of(GRANULE);
    }
}

/// Gives all functions behind a host bridge addresses, and calls `found` with each that is no bridge. `registers` are
/// the configurations of as many `buses`.
pub fn enumerate<R: Registers + Clone>(
    registers: &R,
    buses: u64,
    window: &mut Window,
    found: &mut dyn FnMut(Function<R>),
) {
    let last = buses.clamp(1, 256) as usize - 1;
    Enumeration { registers, next_bus: 1, last, window, found }.walk(0, 0, None);
}

struct Enumeration<'a, R> {
    registers: &'a R,
    next_bus: usize,
    last: usize,
    window: &'a mut Window,
    found: &'a mut dyn FnMut(Function<R>),
}

/// The wires of a bus behind bridges: the device on the first bus, and the sum of the devices in between, by which
/// wires are exchanged (PCI-to-PCI Bridge Architecture Specification, table 9-1).
type Behind = Option<(u8, u8)>;

impl<R: Registers + Clone> Enumeration<'_, R> {
    fn walk(&mut self, bus: usize, bridges: usize, behind: Behind) {
        // Bridges that firmware has set up claim buses and memory that others are about to get.
        for (function, kind) in Functions::of(self.registers, bus) {
            if kind == BRIDGE {
                function.write(register::BUSES, 0);
                function.write(register::MEMORY, EMPTY_WINDOW);
                function.write(register::PREFETCHED, EMPTY_WINDOW);
            }
        }
        for (mut function, kind) in Functions::of(self.registers, bus) {
            let device = function.place.1;
            match kind {
                DEVICE => {
                    function.wire = function.pin().map(|pin| match behind {
                        None => (device, pin),
                        Some((first, sum)) => (first, (pin - 1 + device + sum) % 4 + 1),
                    });
                    function.assign(self.window, REGIONS);
                    (self.found)(function);
                }
                BRIDGE if bridges < MOST_BRIDGES => self.pass(function, bridges, behind),
                _ => {}
            }
        }
    }

    /// Gives a bridge a bus and a window, and walks the bus.
    fn pass(&mut self, mut bridge: Function<R>, bridges: usize, behind: Behind) {
        let (primary, device) = (bridge.place.0, bridge.place.1);
        if self.next_bus > self.last {
            return;
        }
        let secondary = self.next_bus;
        self.next_bus += 1;
        let buses = |last: usize| u32::from(primary) | (secondary as u32) << 8 | (last as u32) << 16;
        bridge.write(register::BUSES, buses(self.last));
        bridge.assign(self.window, REGIONS_OF_BRIDGE);
        self.window.align();
        let start = self.window.next;
        let behind = behind.map_or((device, 0), |(first, sum)| (first, (sum + device) % 4));
        self.walk(secondary, bridges + 1, Some(behind));
        self.window.align();
        bridge.write(register::BUSES, buses(self.next_bus - 1));
        let end = self.window.next;
        if start < end && end <= self.window.end {
            bridge.write(register::MEMORY, (start >> 16) as u32 & 0xfff0 | (end - 1) as u32 & 0xfff0_0000);
        }
        bridge.enable(true);
    }
}

/// The functions of a bus, each with the kind of its configuration.
struct Functions<'a, R> {
    registers: &'a R,
    bus: u8,
    /// The next function to look at: its device, and its number there.
    next: (u8, u8),
    /// Number of functions that the device may have.
    count: u8,
}

/// Kinds of configurations.
const DEVICE: u32 = 0;
const BRIDGE: u32 = 1;

impl<'a, R> Functions<'a, R> {
    fn of(registers: &'a R, bus: usize) -> Functions<'a, R> {
        Functions { registers, bus: bus as u8, next: (0, 0), count: 1 }
    }
}

impl<R: Registers + Clone> Iterator for Functions<'_, R> {
    type Item = (Function<R>, u32);

    fn next(&mut self) -> Option<(Function<R>, u32)> {
        while self.next.0 < 32 {
            let (device, number) = self.next;
            let (registers, place) = (self.registers.clone(), (self.bus, device, number));
            let function = Function { registers, place, wire: None, regions: [None; REGIONS] };
            let header = function.exists().then(|| function.read(register::HEADER) >> 16);
            if number == 0 {
                self.count = if header.is_some_and(|header| header & 0x80 != 0) { 8 } else { 1 };
            }
            self.next = if number + 1 < self.count { (device, number + 1) } else { (device + 1, 0) };
            if let Some(header) = header {
                return Some((function, header & 0x7f));
            }
        }
        None
    }
}

impl<R: Registers> Function<R> {
    fn offset(&self, register: usize) -> usize {
        let (bus, device, number) = self.place;
        ((usize::from(bus) << 8) + (usize::from(device) << 3) + usize::from(number)) * FUNCTION + (register & 0xfc)
    }

    /// Reads a word of the first 256 bytes of the configuration. The offset is a multiple of 4.
    pub fn read(&self, register: usize) -> u32 {
        self.registers.read32(self.offset(register))
    }

    /// Writes such a word.
    pub fn write(&self, register: usize, value: u32) {
        self.registers.write32(self.offset(register), value);
    }

    fn exists(&self) -> bool {
        !matches!(self.read(register::IDENTITY) & 0xffff, 0 | 0xffff)
    }

    /// Returns the numbers of bus, device and function.
    pub fn place(&self) -> (u8, u8, u8) {
        self.place
    }

    /// Returns the numbers of vendor and device.
    pub fn identity(&self) -> (u16, u16) {
        let word = self.read(register::IDENTITY);
        (word as u16, (word >> 16) as u16)
    }

    /// Returns the number of the subsystem.
    pub fn subsystem(&self) -> u16 {
        (self.read(register::SUBSYSTEM) >> 16) as u16
    }

    /// Returns the wire for interrupts: the device on the first bus, and the number there, 1 to 4.
    pub fn wire(&self) -> Option<(u8, u8)> {
        self.wire
    }

    /// Returns a region of registers, by the number of its address register.
    pub fn region(&self, number: usize) -> Option<Region> {
        *self.regions.get(number)?
    }

    /// Returns a part of a region.
    pub fn part(&self, number: usize, offset: u64, length: u64) -> Option<Region> {
        let (start, size) = self.region(number)?;
        (offset.checked_add(length)? <= size).then_some((start + offset, length))
    }

    fn pin(&self) -> Option<u8> {
        let pin = (self.read(register::PIN) >> 8) as u8;
        (1..=4).contains(&pin).then_some(pin)
    }

    /// Returns the capabilities: the kind of each and its offset.
    pub fn capabilities(&self) -> impl Iterator<Item = (u8, usize)> {
        let has_list = self.read(register::COMMAND) & command::HAS_CAPABILITIES != 0;
        let mut next = if has_list { self.read(register::CAPABILITIES) as u8 } else { 0 };
        core::iter::from_fn(move || {
            let offset = usize::from(next & 0xfc);
            if offset < 0x40 {
                return None;
            }
            let word = self.read(offset);
            next = (word >> 8) as u8;
            Some((word as u8, offset))
        })
        .take(MOST_CAPABILITIES)
    }

    /// Lets the function be reached in memory, reach memory, and interrupt by its wire if it `has_wire`.
    pub fn enable(&self, has_wire: bool) {
        let old = self.read(register::COMMAND) & !(command::STATUS | command::NO_WIRE);
        let wire = if has_wire { 0 } else { command::NO_WIRE };
        self.write(register::COMMAND, old | command::MEMORY | command::MASTER | wire);
    }

    /// Takes the function's access to memory away, and with it its messages.
    pub fn isolate(&self) {
        let old = self.read(register::COMMAND) & !(command::STATUS | command::MASTER);
        self.write(register::COMMAND, old);
        // The answer comes behind all that the function had sent before (PCI Express Base Specification, section 2.4).
        self.read(register::COMMAND);
    }

    /// Gives all regions of memory addresses, by this number of address registers. Regions of other kinds, and those
    /// without room, have none.
    fn assign(&mut self, window: &mut Window, registers: usize) {
        let old = self.read(register::COMMAND) & !(command::STATUS | command::MEMORY | command::MASTER);
        // A region that changes its address must not answer meanwhile; and a function that gets no driver must neither
        // reach memory nor interrupt by a wire that others share.
        self.write(register::COMMAND, old | command::NO_WIRE);
        let mut number = 0;
        while number < registers {
            number += self.assign_region(number, registers, window);
        }
    }

    /// Gives the region of one of these address registers an address; returns the number of registers that it takes.
    fn assign_region(&mut self, number: usize, registers: usize, window: &mut Window) -> usize {
        let place = register::REGION + 4 * number;
        let low = self.read(place);
        // Bit 0: ports.
        if low & 1 != 0 {
            return 1;
        }
        // Bits 1 and 2: the address has 64 bits.
        let is_long = low >> 1 & 3 == 2 && number + 1 < registers;
        self.write(place, u32::MAX);
        let mut bits = u64::from(self.read(place) & !0xf) | 0xffff_ffff << 32;
        if is_long {
            self.write(place + 4, u32::MAX);
            bits = bits & 0xffff_ffff | u64::from(self.read(place + 4)) << 32;
        }
        // The lowest bit that can be set is the size.
        let size = bits & bits.wrapping_neg();
        let address = if size < 1 << 32 { window.take(size.max(16)) } else { None };
        self.write(place, address.unwrap_or(0) as u32);
        if is_long {
            self.write(place + 4, 0);
        }
        self.regions[number] = address.map(|address| (address.wrapping_add(window.offset), size));
        if is_long { 2 } else { 1 }
    }
}

/// A function's table of messages that interrupt (MSI-X), with its registers.
#[derive(Clone, Copy, Debug)]
pub struct Messages<R> {
    table: R,
    count: usize,
}

/// Bytes of an entry of a table of messages.
const MESSAGE: usize = 16;

mod message {
    /// The address, of 64 bits, to which the function writes the value.
    pub const ADDRESS: usize = 0;
    pub const VALUE: usize = 8;
    /// Bit 0: the message is masked.
    pub const CONTROL: usize = 12;
}

impl<R: Registers> Messages<R> {
    /// Turns on interrupts by messages, all of them masked; `None` if the function has none, or `window` does not reach
    /// its table.
    pub fn of<C: Registers>(function: &Function<C>, window: impl FnOnce(Region) -> Option<R>) -> Option<Messages<R>> {
        let (_, offset) = function.capabilities().find(|(kind, _)| *kind == capability::MESSAGES)?;
        let control = function.read(offset);
        let count = (control >> 16 & 0x7ff) as usize + 1;
        let place = function.read(offset + 4);
        let part = function.part((place & 7) as usize, (place & !7).into(), (count * MESSAGE) as u64)?;
        let messages = Messages { table: window(part)?, count };
        function.enable(false);
        for number in 0..count {
            messages.mask(number);
        }
        // Bit 31: on. Bit 30: all are masked.
        function.write(offset, control & !(1 << 30) | 1 << 31);
        Some(messages)
    }

    /// Returns the number of messages.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Masks a message.
    pub fn mask(&self, number: usize) {
        if number < self.count {
            self.table.write32(number * MESSAGE + message::CONTROL, 1);
        }
    }

    /// Sets what a message writes and where, and unmasks it.
    pub fn set(&self, number: usize, address: u64, value: u32) {
        if number >= self.count {
            return;
        }
        // A message is not changed while the function may send it.
        self.mask(number);
        let entry = number * MESSAGE;
        self.table.write32(entry + message::ADDRESS, address as u32);
        self.table.write32(entry + message::ADDRESS + 4, (address >> 32) as u32);
        self.table.write32(entry + message::VALUE, value);
        self.table.write32(entry + message::CONTROL, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    /// Configurations that behave as those of functions: only some bits of the address registers can be set.
    #[derive(Default)]
    struct Host {
        words: RefCell<BTreeMap<usize, u32>>,
        /// Bits that can be set, by offset; others are all writable.
        masks: BTreeMap<usize, u32>,
    }

    impl Host {
        fn function(&mut self, place: usize, header: u32, regions: &[u32]) {
            let base = place * FUNCTION;
            let mut words = self.words.borrow_mut();
            words.insert(base, 0x1041_1af4);
            self.masks.insert(base, 0);
            self.masks.insert(base + register::COMMAND, !command::STATUS);
            words.insert(base + register::HEADER, header << 16);
            self.masks.insert(base + register::HEADER, 0);
            words.insert(base + register::PIN, 1 << 8);
            let count = [REGIONS, REGIONS_OF_BRIDGE].get(header as usize & 0x7f).copied().unwrap_or(0);
            for number in 0..count {
                let bits = regions.get(number).copied().unwrap_or(0);
                words.insert(base + register::REGION + 4 * number, bits & 0xf);
                self.masks.insert(base + register::REGION + 4 * number, bits & !0xf);
            }
        }

        fn word(&self, place: usize, register: usize) -> u32 {
            self.words.borrow().get(&(place * FUNCTION + register)).copied().unwrap_or(0)
        }

        fn set(&self, place: usize, register: usize, value: u32) {
            self.words.borrow_mut().insert(place * FUNCTION + register, value);
        }

        fn enumerate(&self, window: &mut Window) -> std::vec::Vec<Function<&Host>> {
            let mut all = std::vec::Vec::new();
            enumerate(&self, 16, window, &mut |function| all.push(function));
            all
        }
    }

    impl Registers for &Host {
        fn read8(&self, _: usize) -> u8 {
            panic!("configurations are read by words")
        }
        fn write8(&self, _: usize, _: u8) {
            panic!("configurations are written by words")
        }
        fn read16(&self, _: usize) -> u16 {
            panic!("configurations are read by words")
        }
        fn write16(&self, _: usize, _: u16) {
            panic!("configurations are written by words")
        }
        fn read32(&self, offset: usize) -> u32 {
            assert!(offset < 16 << 20);
            // A function that is not there.
            let absent = if offset.is_multiple_of(FUNCTION) { u32::MAX } else { 0 };
            self.words.borrow().get(&offset).copied().unwrap_or(absent)
        }
        fn write32(&self, offset: usize, value: u32) {
            assert!(offset < 16 << 20);
            let mask = self.masks.get(&offset).copied().unwrap_or(u32::MAX);
            let mut words = self.words.borrow_mut();
            let word = words.entry(offset).or_insert(0);
            *word = *word & !mask | value & mask;
        }
    }

    const START: u64 = 0x4000_0000;

    fn window() -> Window {
        Window::new(START, START + (1 << 40), 1 << 24)
    }

    #[test]
    fn functions_get_addresses_in_the_window() {
        let mut host = Host::default();
        // A region of 4 KiB, one of ports, one of 16 KiB with 64 bits.
        host.function(1 << 3, 0, &[0xffff_f000, 0xffff_ffe1, 0xffff_c004, 0xffff_ffff]);
        // Several functions, the second absent.
        host.function(2 << 3, 0x80, &[]);
        host.function(2 << 3 | 2, 0, &[0xffff_ff00]);
        // The second function of a device that has one.
        host.function(3 << 3, 0, &[]);
        host.function(3 << 3 | 1, 0, &[]);
        let mut window = window();
        let all = host.enumerate(&mut window);
        let places: std::vec::Vec<_> = all.iter().map(|function| function.place()).collect();
        assert_eq!(places, [(0, 1, 0), (0, 2, 0), (0, 2, 2), (0, 3, 0)]);
        let physical = START + (1 << 40);
        assert_eq!(all[0].regions[..4], [Some((physical, 0x1000)), None, Some((physical + 0x4000, 0x4000)), None]);
        assert_eq!(all[0].part(2, 0x1000, 0x3000), Some((physical + 0x5000, 0x3000)));
        assert_eq!(all[0].part(2, 0x1001, 0x3000), None);
        assert_eq!(all[0].part(7, 0, 0), None);
        assert_eq!(host.word(1 << 3, register::REGION + 8), (START as u32 + 0x4000) | 4);
        assert_eq!(all[2].region(0), Some((physical + 0x8000, 0x100)));
        assert_eq!((all[0].wire(), all[0].identity()), (Some((1, 1)), (0x1af4, 0x1041)));
        all[0].enable(false);
        assert_eq!(host.word(1 << 3, register::COMMAND), 0x406);
        all[0].isolate();
        assert_eq!(host.word(1 << 3, register::COMMAND), 0x402);
        all[0].enable(true);
        assert_eq!(host.word(1 << 3, register::COMMAND), 6);
    }

    #[test]
    fn regions_without_room_have_no_address() {
        let mut host = Host::default();
        // 32 MiB, 8 GiB, nothing that can be set, and one that fits.
        host.function(0, 0, &[0xfe00_0000, 0x0000_0004, 0xffff_fffe, 0x0000_0000, 0xffff_f000]);
        let mut window = window();
        let all = host.enumerate(&mut window);
        assert_eq!(
            all[0].regions.map(|region| region.map(|region| region.1)),
            [None, None, None, None, Some(4096), None]
        );
        assert_eq!(host.word(0, register::REGION), 0);
    }

    #[test]
    fn bridges_pass_what_is_behind_them() {
        let mut host = Host::default();
        host.function(1 << 3, 1, &[]);
        host.function(2 << 3, 1, &[]);
        // Behind the first a device and another bridge with a device; behind the second nothing.
        host.function(1 << 8, 0, &[0xffff_f000]);
        host.function(1 << 8 | 1 << 3, 1, &[]);
        host.function(2 << 8 | 3 << 3, 0, &[0xffff_0000]);
        let mut window = window();
        let all = host.enumerate(&mut window);
        let places: std::vec::Vec<_> = all.iter().map(|function| function.place()).collect();
        assert_eq!(places, [(1, 0, 0), (2, 3, 0)]);
        assert_eq!(host.word(1 << 3, register::BUSES), 0x02_0100);
        assert_eq!(host.word(1 << 8 | 1 << 3, register::BUSES), 0x02_0201);
        assert_eq!(host.word(2 << 3, register::BUSES), 0x03_0300);
        assert_eq!(host.word(1 << 3, register::MEMORY), 0x4010_4000);
        assert_eq!(host.word(1 << 8 | 1 << 3, register::MEMORY), 0x4010_4010);
        assert_eq!(host.word(2 << 3, register::MEMORY), EMPTY_WINDOW);
        assert_eq!(host.word(2 << 3, register::PREFETCHED), EMPTY_WINDOW);
        // Wires are exchanged by the number of the device at each bridge.
        assert_eq!((all[0].wire(), all[1].wire()), (Some((1, 1)), Some((1, 1))));
        let physical = START + (1 << 40);
        assert_eq!(
            (all[0].region(0), all[1].region(0)),
            (Some((physical, 4096)), Some((physical + GRANULE, 0x1_0000)))
        );
    }

    /// The choices of firmware are taken back before anything behind a bridge is looked at.
    #[test]
    fn bridges_forget_what_firmware_has_chosen() {
        let mut host = Host::default();
        // A bridge with registers of its own, to which firmware gave an address that is another's now.
        host.function(1 << 3, 1, &[0xffff_f000]);
        host.set(1 << 3, register::REGION, START as u32);
        // Its neighbours: one that firmware has given bus 1, and one of a kind that is not known.
        host.function(2 << 3, 1, &[]);
        host.set(2 << 3, register::BUSES, 0x01_0100);
        host.set(2 << 3, register::MEMORY, 0x4010_4000);
        host.function(3 << 3, 2, &[]);
        host.function(1 << 8, 0, &[0xffff_f000]);
        // Firmware has used this function: it may reach memory, and interrupt by its wire.
        host.set(1 << 8, register::COMMAND, command::MEMORY | command::MASTER);
        let seen = RefCell::new(std::vec::Vec::new());
        let configuration = &host;
        enumerate(&configuration, 16, &mut window(), &mut |function| {
            seen.borrow_mut().push((function.place(), host.word(2 << 3, register::BUSES)));
        });
        assert_eq!(*seen.borrow(), [((1, 0, 0), 0)], "the neighbour claims no bus meanwhile");
        let own = u64::from(host.word(1 << 3, register::REGION));
        assert_eq!(own, START, "its own registers have the first address");
        assert_eq!(u64::from(host.word(1 << 8, register::REGION)), START + GRANULE);
        assert_eq!(host.word(1 << 3, register::MEMORY), 0x4010_4010);
        assert_eq!(host.word(1 << 8, register::COMMAND), command::NO_WIRE);
    }

    #[test]
    fn a_bridge_to_itself_comes_to_an_end() {
        let mut host = Host::default();
        for bus in 0..16 {
            for device in 0..32 {
                host.function(bus << 8 | device << 3, 1, &[]);
            }
        }
        assert!(host.enumerate(&mut window()).is_empty());
    }

    #[test]
    fn capabilities_end() {
        let mut host = Host::default();
        host.function(0, 0, &[0xffff_f000]);
        host.set(0, register::COMMAND, command::HAS_CAPABILITIES);
        host.set(0, register::CAPABILITIES, 0x40);
        host.set(0, 0x40, 0x4809);
        host.set(0, 0x48, 0x8000_4011 | 1 << 16);
        host.set(0, 0x4c, 0x100);
        let all = host.enumerate(&mut window());
        // The second leads back to the first.
        assert_eq!(all[0].capabilities().count(), MOST_CAPABILITIES);
        assert_eq!(all[0].capabilities().next(), Some((capability::VENDOR, 0x40)));
        let table = Host::default();
        let messages = Messages::of(&all[0], |part| {
            assert_eq!(part, (START + (1 << 40) + 0x100, 32));
            Some(&table)
        })
        .unwrap();
        assert_eq!((messages.count(), table.word(0, 12), table.word(0, 28)), (2, 1, 1));
        messages.set(1, 0x12_3456_7000, 99);
        messages.set(2, 0, 0);
        assert_eq!([16, 20, 24, 28].map(|offset| table.word(0, offset)), [0x3456_7000, 0x12, 99, 0]);
        assert_eq!(host.word(0, 0x48) >> 30, 2);
        // A table that its region does not hold.
        host.set(0, 0x4c, 0xff8);
        assert!(Messages::of(&all[0], |_| Some(&table)).is_none());
        host.set(0, 0x4c, 0x107);
        assert!(Messages::of(&all[0], |_| Some(&table)).is_none());
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Regions never overlap nor leave the window, whatever functions say.
        #[test]
        fn regions_are_apart(functions in prop::collection::vec((0..512usize, any::<u8>(), any::<[u32; 6]>()), 1..40)) {
            let mut host = Host::default();
            for (place, header, regions) in functions {
                host.function(place, (u32::from(header) % 3) | (u32::from(header) & 0x80), &regions);
            }
            let mut window = window();
            let mut regions: std::vec::Vec<_> =
                host.enumerate(&mut window).iter().flat_map(|function| function.regions).flatten().collect();
            regions.sort_unstable();
            let mut end = START + (1 << 40);
            for (start, length) in regions {
                prop_assert!(start >= end && start % length == 0);
                end = start + length;
            }
            prop_assert!(end <= START + (1 << 40) + (1 << 24));
        }
    }
}
