//! The device tree's contents, checked and in fixed arrays.
//!
//! The tree comes from firmware that may be broken: nothing here indexes without a check, adds without a check or loops
//! without a bound, and everything that the kernel cannot run without is either found and plausible or the tree is
//! rejected with one sentence ([`Damaged`]). A damaged device that the kernel can do without is left out.

use core::fmt;

use drivers::aplic::{Delivery, Trigger};
use hal_api::{BootInformation, MAXIMUM_HARTS, PAGE_SIZE};
use heapless::Vec;

use crate::device_tree::Node;

/// Maximum number of ranges of memory, usable or reserved.
pub const MAXIMUM_RANGES: usize = 32;
/// Maximum number of virtio devices.
pub const MAXIMUM_DEVICES: usize = 32;
/// Largest interrupt source that is served.
pub const MAXIMUM_SOURCE: u32 = 255;
/// Bytes that the kernel's direct map can reach.
const REACHABLE: u64 = 64 << 30;
/// Maximum depth of nested buses.
const MAXIMUM_DEPTH: usize = 6;

/// A range of physical addresses: first byte, and first byte behind.
pub type Range = (u64, u64);
/// Ranges in rising order, without overlaps.
pub type Ranges = Vec<Range, MAXIMUM_RANGES>;

/// The device tree cannot be used, for the reason in the sentence. The kernel cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged(pub &'static str);

impl fmt::Display for Damaged {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(self.0)
    }
}

/// The machine, as the device tree describes it.
#[derive(Clone, Debug)]
pub struct Description<'a> {
    /// All memory that the kernel may touch: everything but the firmware's own.
    pub memory: Ranges,
    /// Unused memory: without firmware, kernel image, device tree and initial file system.
    pub free_memory: Ranges,
    /// Addresses that hold no device registers: all memory, including the firmware's own.
    pub not_devices: Ranges,
    /// Machine numbers of the harts, by dense index; the boot hart first.
    pub hart_ids: Vec<u64, MAXIMUM_HARTS>,
    /// Ticks of the time register in a second.
    pub timebase_frequency: u64,
    /// Whether all harts have a timer register of their own (extension Sstc).
    pub has_timer_register: bool,
    /// Whether every hart has the hypervisor extension.
    pub has_hypervisor: bool,
    /// The serial line.
    pub serial: Option<Serial>,
    /// Controller of interrupts from devices.
    pub controller: Controller,
    /// The virtio devices, by rising address.
    pub virtio: Vec<Device, MAXIMUM_DEVICES>,
    /// Physical address and bytes of the real-time clock's registers.
    pub real_time_clock: Option<(u64, u64)>,
    /// Physical address and bytes of the registers of UINTC. The machine has it together with the N extension and UIPI.
    pub user_interrupts: Option<(u64, u64)>,
    /// Physical address of a register to which an emulator's exit status is written.
    pub test_device: Option<u64>,
    /// The kernel's command line.
    pub arguments: &'a str,
    /// Addresses of the initial file system.
    pub initial_files: Option<Range>,
    /// Random bytes from the firmware; may be empty.
    pub random_seed: &'a [u8],
}

/// A device with registers and perhaps an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Physical address of the first register.
    pub address: u64,
    /// Bytes of registers.
    pub length: u64,
    /// Its interrupt, if it has one that the controller of this machine delivers.
    pub interrupt: Option<Interrupt>,
}

/// A source of interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupt {
    /// Its number at the controller, 1 to [`MAXIMUM_SOURCE`].
    pub source: u32,
    /// Condition of its wire that means an interrupt.
    pub trigger: Trigger,
}

/// A 16550 UART.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serial {
    /// Registers and interrupt.
    pub device: Device,
    /// Registers are `1 << shift` bytes apart.
    pub shift: u32,
}

/// Controller of interrupts from devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Controller {
    /// There is none; devices must be polled.
    None,
    /// A platform-level interrupt controller.
    Plic {
        /// Physical address and bytes of its registers.
        registers: (u64, u64),
        /// Largest source.
        sources: u32,
        /// Context of each hart's supervisor mode, by dense index.
        contexts: [Option<u32>; MAXIMUM_HARTS],
    },
    /// An advanced platform-level interrupt controller.
    Aplic {
        /// Physical address and bytes of its registers.
        registers: (u64, u64),
        /// Largest source.
        sources: u32,
        /// Form of delivery.
        delivery: Delivery,
        /// Each hart's position in its list, or in that of the IMSIC, by dense index.
        positions: [Option<u32>; MAXIMUM_HARTS],
        /// The IMSIC of the supervisor modes, if it delivers messages.
        imsic: Option<Imsic>,
    },
}

/// The incoming message controllers of all harts' supervisor modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imsic {
    /// Physical address and bytes of the interrupt files' pages.
    pub pages: (u64, u64),
    /// Largest identity.
    pub identities: u32,
    /// Each hart has `1 << guest_index_bits` pages, the first for the supervisor mode.
    pub guest_index_bits: u32,
}

impl<'a> Description<'a> {
    /// Reads the device tree.
    ///
    /// # Errors
    /// [`Damaged`] if a necessary part is missing or implausible.
    pub fn read(boot: &BootInformation, tree: &'a [u8]) -> Result<Description<'a>, Damaged> {
        let root = Node::root(tree).ok_or(Damaged("it is not a flattened device tree, or it is torn"))?;
        let cpus = child(root, "cpus").ok_or(Damaged("it has no processors"))?;
        let chosen = child(root, "chosen");

        let harts = Harts::read(cpus, boot.boot_hart_id)?;
        let timebase_frequency = number(cpus, "timebase-frequency")
            .or_else(|| children(cpus).find_map(|cpu| number(cpu, "timebase-frequency")))
            .filter(|&frequency| frequency > 0)
            .ok_or(Damaged("it does not say how fast time passes"))?;

        let mut description = Description {
            memory: Vec::new(),
            free_memory: Vec::new(),
            not_devices: Vec::new(),
            hart_ids: harts.ids.clone(),
            timebase_frequency,
            has_timer_register: harts.all_have_timer_register,
            has_hypervisor: harts.all_have_hypervisor,
            serial: None,
            controller: Controller::None,
            virtio: Vec::new(),
            real_time_clock: None,
            user_interrupts: None,
            test_device: None,
            arguments: chosen.and_then(|chosen| text(chosen, "bootargs")).unwrap_or(""),
            initial_files: chosen.and_then(initial_files),
            random_seed: chosen.and_then(|chosen| bytes(chosen, "rng-seed")).unwrap_or(&[]),
        };
        description.read_memory(root, boot, tree.len() as u64)?;
        description.controller = find_controller(root, &harts);
        let mut devices =
            Devices { description: &mut description, controller_phandle: controller_phandle(root, &harts) };
        devices.walk(root, root_parent(root), 0);
        sort_by(&mut description.virtio, |device| device.address);
        Ok(description)
    }

    fn read_memory(&mut self, root: Node, boot: &BootInformation, tree: u64) -> Result<(), Damaged> {
        const TOO_MANY: Damaged = Damaged("the memory is in too many pieces");
        let mut all = Ranges::new();
        for node in children(root).filter(|&node| text(node, "device_type") == Some("memory")) {
            for (start, length) in registers(node, root) {
                let end = start.saturating_add(length).min(REACHABLE) & !PAGE_MASK;
                let start = start.checked_add(PAGE_MASK).map_or(u64::MAX, |start| start & !PAGE_MASK);
                if start < end {
                    all.push((start, end)).map_err(|_| TOO_MANY)?;
                }
            }
        }
        all = merge(all);

        let mut firmware = Ranges::new();
        if let Some(reserved) = child(root, "reserved-memory") {
            for node in children(reserved) {
                for (start, length) in registers(node, reserved) {
                    if length > 0 {
                        firmware.push(whole_pages(start, length)).map_err(|_| TOO_MANY)?;
                    }
                }
            }
        }
        self.memory = subtract(&all, &firmware).ok_or(TOO_MANY)?;

        let mut used = firmware.clone();
        used.push(boot.image).map_err(|_| TOO_MANY)?;
        used.push(whole_pages(boot.device_tree_address, tree)).map_err(|_| TOO_MANY)?;
        if let Some((start, end)) = self.initial_files {
            used.push(whole_pages(start, end - start)).map_err(|_| TOO_MANY)?;
        }
        // A tree that is all zeros there is common; the list ends with an empty entry in any case.
        for (start, length) in root.reservations().take(MAXIMUM_RANGES) {
            if length > 0 {
                used.push(whole_pages(start, length)).map_err(|_| TOO_MANY)?;
            }
        }
        self.free_memory = subtract(&self.memory, &used).ok_or(TOO_MANY)?;
        for range in firmware {
            all.push(range).map_err(|_| TOO_MANY)?;
        }
        self.not_devices = merge(all);

        let contains = |&(start, end): &Range| start <= boot.image.0 && boot.image.1 <= end;
        if !self.memory.iter().any(contains) {
            return Err(Damaged("the kernel lies outside of the memory that it lists"));
        }
        if let Some((start, end)) = self.initial_files
            && !self.memory.iter().any(|range| range.0 <= start && end <= range.1)
        {
            return Err(Damaged("the initial file system lies outside of the memory that it lists"));
        }
        if self.free_memory.is_empty() {
            return Err(Damaged("it leaves no memory free"));
        }
        Ok(())
    }

    /// Returns the size of the free memory in bytes.
    pub fn free_bytes(&self) -> u64 {
        self.free_memory.iter().map(|range| range.1 - range.0).sum()
    }
}

const PAGE_MASK: u64 = PAGE_SIZE as u64 - 1;

/// Returns the pages of a range.
fn whole_pages(start: u64, length: u64) -> Range {
    let end = start.saturating_add(length);
    (start & !PAGE_MASK, end.checked_add(PAGE_MASK).map_or(!PAGE_MASK, |end| end & !PAGE_MASK))
}

/// Sorts a few items by insertion: the library's sort takes several kilobytes of code.
fn sort_by<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    for sorted in 1..items.len() {
        let mut at = sorted;
        while at > 0 && key(&items[at]) < key(&items[at - 1]) {
            items.swap(at, at - 1);
            at -= 1;
        }
    }
}

/// Sorts ranges and joins those that touch or overlap.
fn merge(mut ranges: Ranges) -> Ranges {
    sort_by(&mut ranges, |&range| range);
    let mut merged = Ranges::new();
    for (start, end) in ranges {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            // There is room: the result is never longer than the input.
            _ => drop(merged.push((start, end))),
        }
    }
    merged
}

/// Returns `ranges` without `holes`; `None` if the result has too many pieces.
fn subtract(ranges: &Ranges, holes: &[Range]) -> Option<Ranges> {
    let mut rest = ranges.clone();
    for &(hole_start, hole_end) in holes {
        let mut next = Ranges::new();
        for (start, end) in rest {
            if hole_end <= start || end <= hole_start {
                next.push((start, end)).ok()?;
                continue;
            }
            if start < hole_start {
                next.push((start, hole_start)).ok()?;
            }
            if hole_end < end {
                next.push((hole_end, end)).ok()?;
            }
        }
        rest = next;
    }
    Some(rest)
}

/// The harts, and their phandles for interrupt controllers.
struct Harts {
    ids: Vec<u64, MAXIMUM_HARTS>,
    phandles: Vec<Option<u32>, MAXIMUM_HARTS>,
    all_have_timer_register: bool,
    all_have_hypervisor: bool,
}

impl Harts {
    fn read(cpus: Node, boot_hart_id: u64) -> Result<Harts, Damaged> {
        let usable = |&cpu: &Node| {
            text(cpu, "device_type") == Some("cpu") && is_enabled(cpu) && text(cpu, "mmu-type") != Some("riscv,none")
        };
        let id = |cpu| number(cpu, "reg");
        let boot = children(cpus)
            .filter(usable)
            .find(|&cpu| id(cpu) == Some(boot_hart_id))
            .ok_or(Damaged("the hart that booted is not in it"))?;
        let mut harts =
            Harts { ids: Vec::new(), phandles: Vec::new(), all_have_timer_register: true, all_have_hypervisor: true };
        harts.add(boot, boot_hart_id);
        for cpu in children(cpus).filter(usable) {
            if let Some(id) = id(cpu)
                && !harts.ids.contains(&id)
                && harts.ids.len() < MAXIMUM_HARTS
            {
                harts.add(cpu, id);
            }
        }
        Ok(harts)
    }

    fn add(&mut self, cpu: Node, id: u64) {
        let phandle = child(cpu, "interrupt-controller").and_then(|node| phandle(node));
        // The caller leaves room.
        let _ = self.ids.push(id);
        let _ = self.phandles.push(phandle);
        self.all_have_timer_register &= has_extension(cpu, "sstc");
        self.all_have_hypervisor &= has_letter(cpu, "h");
    }

    /// Returns the dense index of the hart whose own controller has this phandle.
    fn index(&self, phandle: u32) -> Option<usize> {
        self.phandles.iter().position(|&own| own == Some(phandle))
    }

    /// Returns the position of each hart's supervisor external interrupt in a controller's list of wires.
    fn positions(&self, controller: Node) -> [Option<u32>; MAXIMUM_HARTS] {
        /// Number of the supervisor external interrupt at a hart's own controller.
        const SUPERVISOR_EXTERNAL: u32 = 9;
        let mut positions = [None; MAXIMUM_HARTS];
        let wires = cells(bytes(controller, "interrupts-extended").unwrap_or(&[]));
        let mut position = 0;
        let mut pending = None;
        for cell in wires {
            match pending.take() {
                None => pending = Some(cell),
                Some(phandle) => {
                    if cell == SUPERVISOR_EXTERNAL
                        && let Some(hart) = self.index(phandle)
                    {
                        positions[hart] = positions[hart].or(Some(position));
                    }
                    position += 1;
                }
            }
        }
        positions
    }
}

fn has_extension(cpu: Node, name: &str) -> bool {
    let listed =
        bytes(cpu, "riscv,isa-extensions").is_some_and(|list| list.split(|&b| b == 0).any(|e| e == name.as_bytes()));
    listed || text(cpu, "riscv,isa").is_some_and(|isa| isa.split('_').skip(1).any(|extension| extension == name))
}

/// Whether a processor has an extension that is a single letter: in the list, or in the first word of the string,
/// behind `rv64`.
fn has_letter(cpu: Node, letter: &str) -> bool {
    let letters =
        text(cpu, "riscv,isa").and_then(|isa| isa.split('_').next()).and_then(|word| word.strip_prefix("rv64"));
    has_extension(cpu, letter) || letters.is_some_and(|letters| letters.contains(letter))
}

/// Returns the controller that the kernel uses, with its node.
fn controller_node<'a>(root: Node<'a>, harts: &Harts) -> Option<(Node<'a>, Option<Node<'a>>)> {
    let reaches_supervisors = |node| harts.positions(node).iter().any(Option::is_some);
    let mut found = None;
    each_node(root, &mut |node| {
        if found.is_some() || !is_enabled(node) {
            return;
        }
        if is_compatible(node, "riscv,aplic") {
            match number(node, "msi-parent") {
                Some(parent) => {
                    let imsic = find(root, |other| phandle(other) == Some(parent as u32));
                    if let Some(imsic) = imsic
                        && is_compatible(imsic, "riscv,imsics")
                        && reaches_supervisors(imsic)
                    {
                        found = Some((node, Some(imsic)));
                    }
                }
                None if reaches_supervisors(node) => found = Some((node, None)),
                None => {}
            }
        } else if (is_compatible(node, "riscv,plic0") || is_compatible(node, "sifive,plic-1.0.0"))
            && reaches_supervisors(node)
        {
            found = Some((node, None));
        }
    });
    found
}

fn controller_phandle(root: Node, harts: &Harts) -> Option<u32> {
    controller_node(root, harts).and_then(|(node, _)| phandle(node))
}

fn find_controller(root: Node, harts: &Harts) -> Controller {
    read_controller(root, harts).unwrap_or(Controller::None)
}

fn read_controller(root: Node, harts: &Harts) -> Option<Controller> {
    let (node, imsic) = controller_node(root, harts)?;
    let registers = wide_registers(node)?;
    if !is_compatible(node, "riscv,aplic") {
        let sources = number(node, "riscv,ndev")?.min(MAXIMUM_SOURCE.into()) as u32;
        let contexts = harts.positions(node);
        // Registers behind the stated length do not exist.
        let last = contexts.iter().flatten().max()?;
        if drivers::plic::Plic::<NoRegisters>::length(*last) > registers.1 {
            return None;
        }
        return Some(Controller::Plic { registers, sources, contexts });
    }
    let sources = number(node, "riscv,num-sources")?.min(MAXIMUM_SOURCE.into()) as u32;
    let (delivery, positions, imsic) = match imsic {
        None => {
            let positions = harts.positions(node);
            if drivers::aplic::Aplic::<NoRegisters>::direct_length(*positions.iter().flatten().max()?) > registers.1 {
                return None;
            }
            (Delivery::Direct, positions, None)
        }
        Some(imsic) => {
            let pages = wide_registers(imsic)?;
            let guest_index_bits = number(imsic, "riscv,guest-index-bits").unwrap_or(0);
            let identities = number(imsic, "riscv,num-ids")?;
            if guest_index_bits > 7 || identities < 63 {
                return None;
            }
            let identities = identities.min(2047) as u32;
            let positions = harts.positions(imsic);
            let last = *positions.iter().flatten().max()?;
            let guest_index_bits = guest_index_bits as u32;
            if drivers::imsic::page_offset(last, guest_index_bits, 0) + drivers::imsic::PAGE > pages.1 {
                return None;
            }
            (Delivery::Messages, positions, Some(Imsic { pages, identities, guest_index_bits }))
        }
    };
    if registers.1 < drivers::aplic::LENGTH {
        return None;
    }
    Some(Controller::Aplic { registers, sources, delivery, positions, imsic })
}

/// Stands for registers where only a driver's constants are needed.
enum NoRegisters {}

impl drivers::Registers for NoRegisters {
    fn read8(&self, _: usize) -> u8 {
        match *self {}
    }
    fn write8(&self, _: usize, _: u8) {
        match *self {}
    }
    fn read32(&self, _: usize) -> u32 {
        match *self {}
    }
    fn write32(&self, _: usize, _: u32) {
        match *self {}
    }
}

/// Finds the device that can end an emulator, in a tree that may be otherwise useless.
pub fn find_test_device(tree: &[u8]) -> Option<u64> {
    let node =
        find(Node::root(tree)?, |node| is_compatible(node, "sifive,test0") || is_compatible(node, "sifive,test1"))?;
    wide_registers(node).map(|(address, _)| address).filter(|address| address.is_multiple_of(4))
}

/// Collects devices.
struct Devices<'d, 'a> {
    description: &'d mut Description<'a>,
    controller_phandle: Option<u32>,
}

impl Devices<'_, '_> {
    /// Visits the nodes on a bus whose addresses are physical ones.
    fn walk(&mut self, bus: Node, parent: Option<u32>, depth: usize) {
        for node in children(bus).filter(|&node| is_enabled(node)) {
            let parent = number(node, "interrupt-parent").map(|parent| parent as u32).or(parent);
            if is_compatible(node, "virtio,mmio") {
                if let Some(device) = self.device(node, bus, parent) {
                    // With more than the list holds, the rest is left out.
                    let _ = self.description.virtio.push(device);
                }
            } else if is_compatible(node, "ns16550a") || is_compatible(node, "ns16550") {
                if self.description.serial.is_none()
                    && let Some(device) = self.device(node, bus, parent)
                {
                    let shift = number(node, "reg-shift").unwrap_or(0);
                    if shift <= 3 && device.length >= 6 << shift {
                        self.description.serial = Some(Serial { device, shift: shift as u32 });
                    }
                }
            } else if is_compatible(node, "google,goldfish-rtc") {
                if let Some((address, length @ drivers::rtc::LENGTH..)) = registers(node, bus).next()
                    && address.is_multiple_of(4)
                    && address.checked_add(length).is_some()
                {
                    self.description.real_time_clock = Some((address, length));
                }
            } else if is_compatible(node, "riscv,uintc0") {
                if let Some((address, length @ drivers::uintc::LENGTH..)) = registers(node, bus).next()
                    && address.is_multiple_of(8)
                    && address.checked_add(length).is_some()
                {
                    self.description.user_interrupts = Some((address, length));
                }
            } else if is_compatible(node, "sifive,test0") || is_compatible(node, "sifive,test1") {
                if let Some((address, length @ 4..)) = registers(node, bus).next()
                    && address.is_multiple_of(4)
                {
                    let _ = length;
                    self.description.test_device = Some(address);
                }
            } else if depth < MAXIMUM_DEPTH && bytes(node, "ranges").is_some_and(<[u8]>::is_empty) {
                self.walk(node, parent, depth + 1);
            }
        }
    }

    fn device(&self, node: Node, bus: Node, parent: Option<u32>) -> Option<Device> {
        let (address, length) = registers(node, bus).next().filter(|&(_, length)| length > 0)?;
        address.checked_add(length)?;
        Some(Device { address, length, interrupt: self.interrupt(node, parent) })
    }

    fn interrupt(&self, node: Node, parent: Option<u32>) -> Option<Interrupt> {
        let sources = match self.description.controller {
            Controller::None => return None,
            Controller::Plic { sources, .. } | Controller::Aplic { sources, .. } => sources,
        };
        let mut wire = match bytes(node, "interrupts-extended") {
            Some(extended) => {
                let mut wire = cells(extended);
                if wire.next() != self.controller_phandle {
                    return None;
                }
                wire
            }
            None if parent.is_some() && parent == self.controller_phandle => cells(bytes(node, "interrupts")?),
            None => return None,
        };
        let source = wire.next().filter(|source| (1..=sources).contains(source))?;
        let trigger = match self.description.controller {
            Controller::Aplic { .. } => Trigger::from_device_tree(wire.next()?),
            _ => Trigger::HighLevel,
        };
        Some(Interrupt { source, trigger })
    }
}

fn root_parent(root: Node) -> Option<u32> {
    number(root, "interrupt-parent").map(|parent| parent as u32)
}

fn initial_files(chosen: Node) -> Option<Range> {
    let (start, end) = (number(chosen, "linux,initrd-start")?, number(chosen, "linux,initrd-end")?);
    (start < end).then_some((start, end))
}

// The helpers below look at a node's properties as bytes, so that a value cannot be longer than its bytes.

fn children<'a>(node: Node<'a>) -> impl Iterator<Item = Node<'a>> {
    node.children()
}

fn child<'a>(node: Node<'a>, name: &str) -> Option<Node<'a>> {
    children(node).find(|child| child.name() == name.as_bytes())
}

fn bytes<'a>(node: Node<'a>, name: &str) -> Option<&'a [u8]> {
    node.property(name)
}

fn cells(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|cell| u32::from_be_bytes([cell[0], cell[1], cell[2], cell[3]]))
}

/// Returns a number of one or two cells.
fn number(node: Node, name: &str) -> Option<u64> {
    let bytes = bytes(node, name)?;
    match bytes.len() {
        4 | 8 => Some(cells(bytes).fold(0, |value, cell| value << 32 | u64::from(cell))),
        _ => None,
    }
}

fn text<'a>(node: Node<'a>, name: &str) -> Option<&'a str> {
    let bytes = bytes(node, name)?;
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    core::str::from_utf8(&bytes[..end]).ok()
}

fn phandle(node: Node) -> Option<u32> {
    number(node, "phandle").map(|phandle| phandle as u32)
}

fn is_compatible(node: Node, name: &str) -> bool {
    bytes(node, "compatible").is_some_and(|list| list.split(|&byte| byte == 0).any(|entry| entry == name.as_bytes()))
}

fn is_enabled(node: Node) -> bool {
    matches!(text(node, "status"), None | Some("okay" | "ok"))
}

/// Returns address and length of each entry of `reg`, in the cells that the bus prescribes.
fn registers<'a>(node: Node<'a>, bus: Node) -> impl Iterator<Item = (u64, u64)> + use<'a> {
    let address_cells = number(bus, "#address-cells").unwrap_or(2);
    let size_cells = number(bus, "#size-cells").unwrap_or(1);
    let plausible = (1..=2).contains(&address_cells) && (1..=2).contains(&size_cells);
    let (address_bytes, size_bytes) =
        if plausible { (address_cells as usize * 4, size_cells as usize * 4) } else { (4, 4) };
    let value = if plausible { bytes(node, "reg").unwrap_or(&[]) } else { &[] };
    value.chunks_exact(address_bytes + size_bytes).map(move |entry| {
        let number = |bytes| cells(bytes).fold(0, |value, cell| value << 32 | u64::from(cell));
        (number(&entry[..address_bytes]), number(&entry[address_bytes..]))
    })
}

/// Returns the first entry of `reg` of a node on a bus with two cells each for address and length, as on all 64-bit
/// machines.
fn wide_registers(node: Node) -> Option<(u64, u64)> {
    let value = bytes(node, "reg")?;
    if value.len() < 16 {
        return None;
    }
    let mut cells = cells(value).map(u64::from);
    let mut wide = || Some(cells.next()? << 32 | cells.next()?);
    let (address, length) = (wide()?, wide()?);
    address.checked_add(length)?;
    Some((address, length))
}

fn each_node<'a>(root: Node<'a>, visit: &mut impl FnMut(Node<'a>)) {
    fn inner<'a>(node: Node<'a>, depth: usize, visit: &mut impl FnMut(Node<'a>)) {
        for child in children(node) {
            visit(child);
            if depth < MAXIMUM_DEPTH {
                inner(child, depth + 1, visit);
            }
        }
    }
    inner(root, 0, visit);
}

fn find<'a>(root: Node<'a>, mut wanted: impl FnMut(Node<'a>) -> bool) -> Option<Node<'a>> {
    let mut found = None;
    each_node(root, &mut |node| {
        if found.is_none() && wanted(node) {
            found = Some(node);
        }
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Eight harts, APLIC and IMSIC, 1 GiB, a command line and an initial file system, as QEMU makes it.
    const AIA: &[u8] = include_bytes!("../fixtures/virt-aia.dtb");
    /// Four harts, PLIC, 256 MiB, as OpenSBI passes it on.
    const PLIC: &[u8] = include_bytes!("../fixtures/virt-plic.dtb");

    /// Two harts, APLIC and IMSIC, UINTC, 256 MiB, as the emulator of boards/uintc makes it.
    const UINTC: &[u8] = include_bytes!("../fixtures/virt-uintc.dtb");

    fn boot(hart: u64) -> BootInformation {
        BootInformation {
            device_tree: &[],
            device_tree_address: 0x8700_0000,
            boot_hart_id: hart,
            image: (0x8020_0000, 0x8040_0000),
        }
    }

    fn read(hart: u64, tree: &[u8]) -> Result<Description<'_>, Damaged> {
        Description::read(&boot(hart), tree)
    }

    #[test]
    fn the_machine_with_message_interrupts() {
        let found = read(5, AIA).unwrap();
        assert_eq!(found.hart_ids, [5, 0, 1, 2, 3, 4, 6, 7]);
        assert_eq!(found.timebase_frequency, 10_000_000);
        assert!(found.has_timer_register);
        assert_eq!(found.memory, [(0x8000_0000, 0xc000_0000)]);
        assert_eq!(found.arguments, "init=/bin/x");
        let (start, end) = found.initial_files.unwrap();
        assert_eq!(end - start, 6);
        let page = start & !0xfff;
        let tree_end = 0x8700_0000 + (AIA.len() as u64).next_multiple_of(4096);
        assert_eq!(
            found.free_memory,
            [(0x8000_0000, 0x8020_0000), (0x8040_0000, 0x8700_0000), (tree_end, page), (page + 0x1000, 0xc000_0000)]
        );
        let wire = Interrupt { source: 10, trigger: Trigger::HighLevel };
        let device = Device { address: 0x1000_0000, length: 0x100, interrupt: Some(wire) };
        assert_eq!(found.serial, Some(Serial { device, shift: 0 }));
        assert_eq!(found.real_time_clock, Some((0x10_1000, 0x1000)));
        assert_eq!(found.test_device, Some(0x10_0000));
        assert_eq!(find_test_device(AIA), Some(0x10_0000));
        assert_eq!(found.random_seed.len(), 32);
        assert_eq!(
            found.controller,
            Controller::Aplic {
                registers: (0xd00_0000, 0x8000),
                sources: 96,
                delivery: Delivery::Messages,
                positions: [5, 0, 1, 2, 3, 4, 6, 7].map(Some),
                imsic: Some(Imsic { pages: (0x2800_0000, 0x2_0000), identities: 255, guest_index_bits: 2 }),
            }
        );
        assert_eq!(found.virtio.len(), 8);
        assert_eq!(found.virtio[0].address, 0x1000_1000);
        assert_eq!(found.virtio[7].interrupt.unwrap().source, 8);
    }

    #[test]
    fn the_machine_with_user_level_interrupts() {
        let found = read(0, UINTC).unwrap();
        assert_eq!(found.hart_ids, [0, 1]);
        assert_eq!(found.user_interrupts, Some((0x2f1_0000, 0x4000)));
        assert!(matches!(found.controller, Controller::Aplic { imsic: Some(_), .. }));
        for other in [AIA, PLIC] {
            assert_eq!(read(0, other).unwrap().user_interrupts, None);
        }
    }

    #[test]
    fn the_machine_with_wired_interrupts() {
        let found = read(0, PLIC).unwrap();
        assert_eq!(found.hart_ids, [0, 1, 2, 3]);
        // OpenSBI has reserved its own memory.
        assert_eq!(found.memory, [(0x8008_0000, 0x9000_0000)]);
        assert_eq!(found.not_devices, [(0x8000_0000, 0x9000_0000)]);
        assert_eq!(
            found.controller,
            Controller::Plic {
                registers: (0xc00_0000, 0x60_0000),
                sources: 96,
                contexts: [Some(1), Some(3), Some(5), Some(7), None, None, None, None],
            }
        );
        assert_eq!(found.initial_files, None);
        assert_eq!(found.arguments, "");
    }

    #[test]
    fn damaged_and_incomplete_descriptions_are_refused() {
        let reason = |result: Result<Description, Damaged>| result.unwrap_err().0;
        assert!(reason(read(0, &[])).contains("flattened"));
        assert!(reason(read(0, &AIA[..AIA.len() - 1])).contains("torn"));
        assert!(reason(read(8, AIA)).contains("hart that booted"));
        let elsewhere = BootInformation { image: (0x1000, 0x2000), ..boot(0) };
        assert!(reason(Description::read(&elsewhere, AIA)).contains("kernel lies outside"));
        let mut renamed = PLIC.to_vec();
        replace(&mut renamed, b"timebase-frequency", b"timebase-frequenzy");
        assert!(reason(read(0, &renamed)).contains("how fast time passes"));
        let mut renamed = PLIC.to_vec();
        replace(&mut renamed, b"cpus", b"cpuz");
        assert!(reason(read(0, &renamed)).contains("no processors"));
    }

    #[test]
    fn a_machine_without_a_known_interrupt_controller_still_runs() {
        let mut renamed = PLIC.to_vec();
        replace(&mut renamed, b"riscv,plic0", b"riscv,plic9");
        replace(&mut renamed, b"sifive,plic-1.0.0", b"sifive,plic-9.9.9");
        let found = read(0, &renamed).unwrap();
        assert_eq!(found.controller, Controller::None);
        assert!(found.virtio.iter().all(|device| device.interrupt.is_none()));
    }

    fn replace(tree: &mut [u8], from: &[u8], to: &[u8]) {
        assert_eq!(from.len(), to.len());
        let at = tree.windows(from.len()).position(|window| window == from).unwrap();
        tree[at..at + to.len()].copy_from_slice(to);
    }

    /// Checks the guarantees for every description that is not rejected.
    fn check(found: &Description, boot: &BootInformation) {
        let ordered = |ranges: &Ranges| {
            ranges.iter().all(|range| range.0 < range.1 && (range.0 | range.1) % 4096 == 0)
                && ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0)
        };
        assert!(ordered(&found.memory) && ordered(&found.free_memory) && ordered(&found.not_devices));
        let inside = |range: &Range, ranges: &Ranges| ranges.iter().any(|r| r.0 <= range.0 && range.1 <= r.1);
        assert!(found.free_memory.iter().all(|range| inside(range, &found.memory)));
        assert!(found.memory.iter().all(|range| inside(range, &found.not_devices) && range.1 <= REACHABLE));
        let tree = (boot.device_tree_address, boot.device_tree_address + 1);
        for used in [Some(boot.image), Some(tree), found.initial_files].iter().flatten() {
            assert!(found.free_memory.iter().all(|free| free.1 <= used.0 || used.1 <= free.0));
        }
        assert_eq!(found.hart_ids[0], boot.boot_hart_id);
        assert!(found.timebase_frequency > 0);
        let wires = found.virtio.iter().filter_map(|device| device.interrupt);
        assert!(wires.into_iter().all(|interrupt| (1..=MAXIMUM_SOURCE).contains(&interrupt.source)));
    }

    fn mutated() -> impl Strategy<Value = std::vec::Vec<u8>> {
        let change = (any::<prop::sample::Index>(), prop_oneof![any::<u8>(), Just(0), Just(0xff), 0..9_u8]);
        let word = (any::<prop::sample::Index>(), prop_oneof![0..20_u32, any::<u32>(), Just(u32::MAX)]);
        let copy = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1..64_usize);
        (
            any::<bool>(),
            prop::collection::vec(change, 0..6),
            prop::collection::vec(word, 0..6),
            prop::collection::vec(copy, 0..3),
            prop::option::weighted(0.1, any::<prop::sample::Index>()),
        )
            .prop_map(|(aia, changes, words, copies, cut)| {
                let mut tree = if aia { AIA } else { PLIC }.to_vec();
                for (at, value) in changes {
                    let at = at.index(tree.len());
                    tree[at] = value;
                }
                for (at, value) in words {
                    let at = at.index(tree.len() / 4) * 4;
                    tree[at..at + 4].copy_from_slice(&value.to_be_bytes());
                }
                for (from, to, length) in copies {
                    let (from, to) = (from.index(tree.len() - length), to.index(tree.len() - length));
                    tree.copy_within(from..from + length, to);
                }
                if let Some(cut) = cut {
                    tree.truncate(cut.index(tree.len()));
                }
                tree
            })
    }

    #[test]
    fn fuzz_device_tree() {
        property::fuzz("device_tree", &[AIA, PLIC], |tree| {
            let _ = find_test_device(tree);
            if let Ok(found) = read(0, tree) {
                check(&found, &boot(0));
            }
        });
    }

    proptest! {
        #![proptest_config(property::cases(4000))]

        #[test]
        fn damaged_trees_are_rejected_or_plausible(tree in mutated()) {
            let _ = find_test_device(&tree);
            if let Ok(found) = read(0, &tree) {
                check(&found, &boot(0));
            }
        }

        #[test]
        fn bytes_that_are_no_tree_are_rejected(tree in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(read(0, &tree).is_err());
        }
    }
}
