//! The device tree's contents, checked and in fixed arrays.
//!
//! The tree comes from firmware that may be broken: nothing here indexes without a check, adds without a check or loops
//! without a bound, and everything that the kernel cannot run without is either found and plausible or the tree is
//! rejected with one sentence ([`Damaged`]). A damaged device that the kernel can do without is left out, with a
//! [`Remark`]. Both name the node and the property.
//!
//! An address is one of its bus: the `ranges` of all buses above it make it a physical one.

use core::fmt::{self, Write as _};

use drivers::aplic::{Delivery, Trigger};
use drivers::uart::UartKind;
use hal_api::{BootInformation, MAXIMUM_HARTS, PAGE_SIZE};
use heapless::Vec;

use crate::device_tree::Node;

/// Maximum number of ranges of memory, usable or reserved.
pub const MAXIMUM_RANGES: usize = 32;
/// Maximum number of virtio devices.
pub const MAXIMUM_DEVICES: usize = 32;
/// Maximum number of Ethernet controllers.
pub const MAXIMUM_ETHERNET: usize = 4;
/// Maximum number of remarks; further ones are not kept.
pub const MAXIMUM_REMARKS: usize = 12;
/// Largest interrupt source that is served, and that a PLIC or APLIC can have.
pub const MAXIMUM_SOURCE: u32 = 1023;
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

/// A part of the device tree that the kernel does without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remark<'a> {
    /// The node's name with its address on its bus.
    pub node: &'a [u8],
    /// The property.
    pub property: &'static str,
    /// Its fault, and the consequence.
    pub finding: Finding,
}

/// The fault of a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// In words.
    Text(&'static str),
    /// Bytes of memory are out of reach.
    Unreachable(u64),
}

impl fmt::Display for Remark<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        for &byte in self.node {
            formatter.write_char(if byte.is_ascii_graphic() { byte.into() } else { '?' })?;
        }
        write!(formatter, ": `{}` ", self.property)?;
        match self.finding {
            Finding::Text(text) => formatter.write_str(text),
            Finding::Unreachable(bytes) => {
                write!(formatter, "has {} MiB above {} GiB: they are not used", bytes >> 20, REACHABLE >> 30)
            }
        }
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
    /// Whether the page tables of all harts have types of memory (extension Svpbmt).
    pub has_page_types: bool,
    /// Whether every hart has the hypervisor extension.
    pub has_hypervisor: bool,
    /// The serial line.
    pub serial: Option<Serial>,
    /// Controller of interrupts from devices.
    pub controller: Controller,
    /// The number by which other nodes name it.
    pub(crate) controller_phandle: Option<u32>,
    /// The virtio devices, by rising address.
    pub virtio: Vec<Device, MAXIMUM_DEVICES>,
    /// Cadence's Ethernet controllers, by rising address.
    pub ethernet: Vec<Ethernet, MAXIMUM_ETHERNET>,
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
    /// Parts that the kernel does without, for people.
    pub remarks: Vec<Remark<'a>, MAXIMUM_REMARKS>,
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

/// A UART.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serial {
    /// Registers and interrupt.
    pub device: Device,
    /// Its kind.
    pub kind: UartKind,
}

/// An Ethernet controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ethernet {
    /// Registers and interrupt.
    pub device: Device,
    /// Its hardware address, if the firmware has written one into the tree.
    pub address: Option<[u8; 6]>,
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
        let cpus = child(root, "cpus").ok_or(Damaged("it has no processors (the node /cpus)"))?;
        let chosen = child(root, "chosen");

        let harts = Harts::read(cpus, boot.boot_hart_id)?;
        let timebase_frequency = number(cpus, "timebase-frequency")
            .or_else(|| children(cpus).find_map(|cpu| number(cpu, "timebase-frequency")))
            .filter(|&frequency| frequency > 0)
            .ok_or(Damaged("it does not say how fast time passes (/cpus: `timebase-frequency`)"))?;

        let mut description = Description {
            memory: Vec::new(),
            free_memory: Vec::new(),
            not_devices: Vec::new(),
            hart_ids: harts.ids.clone(),
            timebase_frequency,
            has_timer_register: harts.all_have_timer_register,
            has_page_types: harts.all_have_page_types,
            has_hypervisor: harts.all_have_hypervisor,
            serial: None,
            controller: Controller::None,
            controller_phandle: None,
            virtio: Vec::new(),
            ethernet: Vec::new(),
            real_time_clock: None,
            user_interrupts: None,
            test_device: None,
            arguments: "",
            initial_files: None,
            random_seed: &[],
            remarks: Vec::new(),
        };
        if harts.left_out > 0 {
            description.remark(cpus, "reg", "of some nodes is not used: this kernel runs on eight harts at most");
        }
        if let Some(chosen) = chosen {
            description.read_chosen(chosen);
        }
        description.read_memory(root, boot, tree.len() as u64)?;
        let controller = description.read_interrupts(root, &harts);
        description.controller_phandle = controller.and_then(phandle);
        let mut devices =
            Devices { output: chosen.and_then(|chosen| standard_output(root, chosen)), description: &mut description };
        devices.walk(&Bus { node: root, above: None }, root_parent(root), 0);
        sort_by(&mut description.virtio, |device| device.address);
        sort_by(&mut description.ethernet, |ethernet| ethernet.device.address);
        Ok(description)
    }

    fn remark(&mut self, node: Node<'a>, property: &'static str, text: &'static str) {
        // With more than the list holds, the rest is left out.
        let _ = self.remarks.push(Remark { node: node.full_name(), property, finding: Finding::Text(text) });
    }

    /// Reads the controller of interrupts; returns its node.
    fn read_interrupts(&mut self, root: Node<'a>, harts: &Harts) -> Option<Node<'a>> {
        let found = controller_node(root, harts);
        match &found {
            Some(found) => match read_controller(found, harts) {
                Ok(controller) => self.controller = controller,
                Err((property, text)) => self.remark(found.node, property, text),
            },
            None => {
                if let Some((node, _)) = find(root, |node| is_aplic(node) || is_plic(node)) {
                    let text = "reaches no hart that the kernel uses: devices do not interrupt";
                    self.remark(node, "interrupts-extended", text);
                }
            }
        }
        found.map(|found| found.node)
    }

    fn read_chosen(&mut self, chosen: Node<'a>) {
        match bytes(chosen, "bootargs").map(|_| text(chosen, "bootargs")) {
            None => {}
            Some(Some(arguments)) => self.arguments = arguments,
            Some(None) => self.remark(chosen, "bootargs", "is no text: there is no command line"),
        }
        match (number(chosen, "linux,initrd-start"), number(chosen, "linux,initrd-end")) {
            (Some(start), Some(end)) if start < end => self.initial_files = Some((start, end)),
            (None, None) => {}
            _ => self.remark(
                chosen,
                "linux,initrd-end",
                "is not behind `linux,initrd-start`: there are no initial files",
            ),
        }
        self.random_seed = bytes(chosen, "rng-seed").unwrap_or(&[]);
    }

    /// Returns the memory that the tree lists, within reach.
    fn listed_memory(&mut self, root: Node<'a>) -> Result<Ranges, Damaged> {
        let mut all = Ranges::new();
        for node in children(root).filter(|&node| text(node, "device_type") == Some("memory")) {
            let mut unreachable: u64 = 0;
            for (start, length) in registers(node, root) {
                let end = start.saturating_add(length);
                unreachable = unreachable.saturating_add(end.saturating_sub(start.max(REACHABLE)));
                let end = end.min(REACHABLE) & !PAGE_MASK;
                let start = start.checked_add(PAGE_MASK).map_or(u64::MAX, |start| start & !PAGE_MASK);
                if start < end {
                    all.push((start, end)).map_err(|_| TOO_MANY)?;
                }
            }
            if unreachable > 0 {
                let finding = Finding::Unreachable(unreachable);
                let _ = self.remarks.push(Remark { node: node.full_name(), property: "reg", finding });
            }
        }
        Ok(merge(all))
    }

    fn read_memory(&mut self, root: Node<'a>, boot: &BootInformation, tree: u64) -> Result<(), Damaged> {
        let mut all = self.listed_memory(root)?;
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
            return Err(Damaged("the kernel lies outside of the memory that it lists (/memory: `reg`)"));
        }
        if let Some((start, end)) = self.initial_files
            && !self.memory.iter().any(|range| range.0 <= start && end <= range.1)
        {
            return Err(Damaged(
                "the initial file system lies outside of the memory that it lists (/chosen: `linux,initrd-start`)",
            ));
        }
        if self.free_memory.is_empty() {
            return Err(Damaged("it leaves no memory free (/memory: `reg`)"));
        }
        Ok(())
    }

    /// Returns the size of the free memory in bytes.
    pub fn free_bytes(&self) -> u64 {
        self.free_memory.iter().map(|range| range.1 - range.0).sum()
    }
}

const TOO_MANY: Damaged =
    Damaged("the memory is in too many pieces (/memory and the nodes of /reserved-memory: `reg`)");

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
    all_have_page_types: bool,
    all_have_hypervisor: bool,
    /// Number of usable harts for which there is no room.
    left_out: usize,
}

impl Harts {
    fn read(cpus: Node, boot_hart_id: u64) -> Result<Harts, Damaged> {
        let cpus = || children(cpus).filter(|&cpu| text(cpu, "device_type") == Some("cpu"));
        let usable = |&cpu: &Node| is_enabled(cpu) && has_paging(cpu);
        let id = |cpu| number(cpu, "reg");
        let boot = cpus()
            .find(|&cpu| id(cpu) == Some(boot_hart_id))
            .ok_or(Damaged("the hart that booted is not in it (/cpus/cpu: `reg`)"))?;
        if !is_enabled(boot) {
            return Err(Damaged("the hart that booted is not to be used (/cpus/cpu: `status`)"));
        }
        if !has_paging(boot) {
            return Err(Damaged("the hart that booted has no paging with 39 bits or more (/cpus/cpu: `mmu-type`)"));
        }
        let mut harts = Harts {
            ids: Vec::new(),
            phandles: Vec::new(),
            all_have_timer_register: true,
            all_have_page_types: true,
            all_have_hypervisor: true,
            left_out: 0,
        };
        harts.add(boot, boot_hart_id);
        for cpu in cpus().filter(usable) {
            match id(cpu) {
                Some(id) if harts.ids.contains(&id) => {}
                Some(id) if harts.ids.len() < MAXIMUM_HARTS => harts.add(cpu, id),
                _ => harts.left_out += 1,
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
        self.all_have_page_types &= has_extension(cpu, "svpbmt");
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

/// Returns whether a hart has tables of 39 bits or more. One without, as the monitor core of many boards, has no type
/// of them, or `riscv,none`.
fn has_paging(cpu: Node) -> bool {
    text(cpu, "mmu-type").and_then(|kind| kind.strip_prefix("riscv,sv")).is_some_and(|bits| bits != "32")
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

/// The node of an interrupt controller, with physical address and bytes of its registers.
struct ControllerNode<'a> {
    node: Node<'a>,
    registers: Option<(u64, u64)>,
    /// Node and registers of the IMSIC, if it sends messages.
    imsic: Option<(Node<'a>, Option<(u64, u64)>)>,
}

fn is_aplic(node: Node) -> bool {
    is_compatible(node, "riscv,aplic")
}

fn is_plic(node: Node) -> bool {
    is_compatible(node, "riscv,plic0") || is_compatible(node, "sifive,plic-1.0.0")
}

/// Returns the controller that the kernel uses.
fn controller_node<'a>(root: Node<'a>, harts: &Harts) -> Option<ControllerNode<'a>> {
    let reaches_supervisors = |node| harts.positions(node).iter().any(Option::is_some);
    let mut found = None;
    each_node(root, &mut |node, bus| {
        if found.is_some() || !is_enabled(node) {
            return;
        }
        let registers = bus.registers(node);
        if is_aplic(node) {
            match number(node, "msi-parent") {
                Some(parent) => {
                    let is_parent = |other| phandle(other) == Some(parent as u32);
                    if let Some((imsic, pages)) = find(root, is_parent)
                        && is_compatible(imsic, "riscv,imsics")
                        && reaches_supervisors(imsic)
                    {
                        found = Some(ControllerNode { node, registers, imsic: Some((imsic, pages)) });
                    }
                }
                None if reaches_supervisors(node) => found = Some(ControllerNode { node, registers, imsic: None }),
                None => {}
            }
        } else if is_plic(node) && reaches_supervisors(node) {
            found = Some(ControllerNode { node, registers, imsic: None });
        }
    });
    found
}

/// Reads a controller's properties; the error is the property that makes it useless, and the reason.
fn read_controller(found: &ControllerNode, harts: &Harts) -> Result<Controller, (&'static str, &'static str)> {
    const SHORT: (&str, &str) = ("reg", "has no or too few registers: devices do not interrupt");
    const SOURCES: &str = "is no number of sources: devices do not interrupt";
    const IMSIC: (&str, &str) = ("msi-parent", "is a controller of messages that is damaged: devices do not interrupt");
    let node = found.node;
    let registers = found.registers.ok_or(SHORT)?;
    let sources = |property: &'static str| -> Result<u32, (&'static str, &'static str)> {
        let sources = number(node, property).filter(|&sources| sources > 0).ok_or((property, SOURCES))?;
        Ok(sources.min(MAXIMUM_SOURCE.into()) as u32)
    };
    let last = |positions: &[Option<u32>]| positions.iter().flatten().max().copied().ok_or(SHORT);
    if !is_aplic(node) {
        let sources = sources("riscv,ndev")?;
        let contexts = harts.positions(node);
        // Registers behind the stated length do not exist.
        if drivers::plic::Plic::<NoRegisters>::length(last(&contexts)?) > registers.1 {
            return Err(SHORT);
        }
        return Ok(Controller::Plic { registers, sources, contexts });
    }
    let mut sources = sources("riscv,num-sources")?;
    let (delivery, positions, imsic) = match found.imsic {
        None => {
            let positions = harts.positions(node);
            if drivers::aplic::Aplic::<NoRegisters>::direct_length(last(&positions)?) > registers.1 {
                return Err(SHORT);
            }
            (Delivery::Direct, positions, None)
        }
        Some((imsic, pages)) => {
            let pages = pages.ok_or(IMSIC)?;
            let guest_index_bits = number(imsic, "riscv,guest-index-bits").unwrap_or(0);
            let identities = number(imsic, "riscv,num-ids").ok_or(IMSIC)?;
            if guest_index_bits > 7 || identities < 63 {
                return Err(IMSIC);
            }
            let identities = identities.min(2047) as u32;
            // The identity of a source is one more than its number.
            sources = sources.min(identities - 1);
            let positions = harts.positions(imsic);
            let last = last(&positions)?;
            let guest_index_bits = guest_index_bits as u32;
            if drivers::imsic::page_offset(last, guest_index_bits, 0) + drivers::imsic::PAGE > pages.1 {
                return Err(IMSIC);
            }
            (Delivery::Messages, positions, Some(Imsic { pages, identities, guest_index_bits }))
        }
    };
    if registers.1 < drivers::aplic::LENGTH {
        return Err(SHORT);
    }
    Ok(Controller::Aplic { registers, sources, delivery, positions, imsic })
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
    fn read16(&self, _: usize) -> u16 {
        match *self {}
    }
    fn write16(&self, _: usize, _: u16) {
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
    let (_, registers) = find(Node::root(tree)?, is_test_device)?;
    test_device(registers)
}

fn is_test_device(node: Node) -> bool {
    is_compatible(node, "sifive,test0") || is_compatible(node, "sifive,test1")
}

fn test_device(registers: Option<(u64, u64)>) -> Option<u64> {
    registers.filter(|&(address, length)| length >= 4 && address.is_multiple_of(4)).map(|(address, _)| address)
}

/// Least bytes of a virtio device's block of registers: as many as emulators give it at least.
const VIRTIO_BLOCK: u64 = 0x200;

/// Collects devices.
struct Devices<'d, 'a> {
    description: &'d mut Description<'a>,
    /// The console's node, if the firmware names one.
    output: Option<Node<'a>>,
}

impl<'a> Devices<'_, 'a> {
    /// Visits the nodes on a bus that passes addresses on.
    fn walk(&mut self, bus: &Bus<'a, '_>, parent: Option<u32>, depth: usize) {
        const UNREACHABLE: &str = "has no registers that can be reached: the device is not used";
        for node in children(bus.node).filter(|&node| is_enabled(node)) {
            let parent = number(node, "interrupt-parent").map(|parent| parent as u32).or(parent);
            let registers = bus.registers(node);
            let aligned = |alignment: u64, length: u64| {
                registers.filter(|&(address, bytes)| address.is_multiple_of(alignment) && bytes >= length)
            };
            let mut is_refused = false;
            let is_of_memory = is_compatible(node, "virtio,mmio") || is_gem(node);
            if is_of_memory && !bus.is_coherent(node) {
                self.description.remark(node, NOT_COHERENT.0, NOT_COHERENT.1);
            } else if is_compatible(node, "virtio,mmio") {
                match self.device(node, aligned(4, VIRTIO_BLOCK), parent) {
                    // With more than the list holds, the rest is left out.
                    Some(device) => _ = self.description.virtio.push(device),
                    None => is_refused = true,
                }
            } else if is_16550(node) || is_compatible(node, "sifive,uart0") {
                match self.serial(node, registers, parent) {
                    Some(serial) if self.description.serial.is_none() || self.is_output(node) => {
                        self.description.serial = Some(serial);
                    }
                    Some(_) => {}
                    None => is_refused = true,
                }
            } else if is_gem(node) {
                match self.device(node, aligned(4, 4), parent) {
                    Some(device) => {
                        let address = hardware_address(node);
                        let _ = self.description.ethernet.push(Ethernet { device, address });
                    }
                    None => is_refused = true,
                }
            } else if is_compatible(node, "google,goldfish-rtc") {
                self.description.real_time_clock = aligned(4, drivers::rtc::LENGTH);
                is_refused = self.description.real_time_clock.is_none();
            } else if is_compatible(node, "riscv,uintc0") {
                self.description.user_interrupts = aligned(8, drivers::uintc::LENGTH);
                is_refused = self.description.user_interrupts.is_none();
            } else if is_test_device(node) {
                self.description.test_device = test_device(registers);
                is_refused = self.description.test_device.is_none();
            } else if depth < MAXIMUM_DEPTH && bytes(node, "ranges").is_some() {
                self.walk(&Bus { node, above: Some(bus) }, parent, depth + 1);
            }
            if is_refused {
                self.description.remark(node, "reg", UNREACHABLE);
            }
        }
    }

    fn device(&mut self, node: Node<'a>, registers: Option<(u64, u64)>, parent: Option<u32>) -> Option<Device> {
        let (address, length) = registers.filter(|&(_, length)| length > 0)?;
        Some(Device { address, length, interrupt: self.interrupt(node, parent) })
    }

    fn serial(&mut self, node: Node<'a>, registers: Option<(u64, u64)>, parent: Option<u32>) -> Option<Serial> {
        let kind = match number(node, "reg-shift") {
            _ if !is_16550(node) => UartKind::SiFive,
            None => UartKind::Ns16550 { shift: 0 },
            Some(shift @ 0..=3) => UartKind::Ns16550 { shift: shift as u32 },
            Some(_) => {
                self.description.remark(node, "reg-shift", "is more than 3");
                return None;
            }
        };
        let alignment = if let UartKind::Ns16550 { shift } = kind { 1 << shift } else { 4 };
        let is_whole = |device: &Device| device.length >= kind.length() && device.address.is_multiple_of(alignment);
        let device = self.device(node, registers, parent).filter(is_whole)?;
        Some(Serial { device, kind })
    }

    fn is_output(&self, node: Node) -> bool {
        self.output.is_some_and(|output| output.is(node))
    }

    fn interrupt(&mut self, node: Node<'a>, parent: Option<u32>) -> Option<Interrupt> {
        let sources = match self.description.controller {
            Controller::None => return None,
            Controller::Plic { sources, .. } | Controller::Aplic { sources, .. } => sources,
        };
        let (property, mut wire) = match bytes(node, "interrupts-extended") {
            Some(extended) => {
                let mut wire = cells(extended);
                if wire.next() != self.description.controller_phandle {
                    return None;
                }
                ("interrupts-extended", wire)
            }
            None if parent.is_some() && parent == self.description.controller_phandle => {
                ("interrupts", cells(bytes(node, "interrupts").unwrap_or(&[])))
            }
            None => return None,
        };
        let source = wire.next().filter(|source| (1..=sources).contains(source));
        let trigger = match self.description.controller {
            Controller::Aplic { .. } => wire.next().map(Trigger::from_device_tree),
            _ => Some(Trigger::HighLevel),
        };
        if let (Some(source), Some(trigger)) = (source, trigger) {
            return Some(Interrupt { source, trigger });
        }
        self.description.remark(node, property, "names no source of the interrupt controller: it does not interrupt");
        None
    }
}

fn is_16550(node: Node) -> bool {
    is_compatible(node, "ns16550a") || is_compatible(node, "ns16550")
}

fn is_gem(node: Node) -> bool {
    ["cdns,gem", "cdns,macb", "sifive,fu540-c000-gem", "microchip,mpfs-macb"]
        .iter()
        .any(|name| is_compatible(node, name))
}

fn hardware_address(node: Node) -> Option<[u8; 6]> {
    bytes(node, "local-mac-address").or_else(|| bytes(node, "mac-address"))?.try_into().ok()
}

/// Returns the node that `/chosen` names as the console: a path, or an alias of one, perhaps with the line's speed.
fn standard_output<'a>(root: Node<'a>, chosen: Node<'a>) -> Option<Node<'a>> {
    let named = text(chosen, "stdout-path")?;
    let named = named.split(':').next()?;
    let path = if named.starts_with('/') { named } else { text(child(root, "aliases")?, named)? };
    path.split('/').filter(|name| !name.is_empty()).try_fold(root, |node, name| {
        let name = name.as_bytes();
        children(node).find(|child| child.full_name() == name || child.name() == name)
    })
}

fn root_parent(root: Node) -> Option<u32> {
    number(root, "interrupt-parent").map(|parent| parent as u32)
}

// The helpers below look at a node's properties as bytes, so that a value cannot be longer than its bytes.

fn children<'a>(node: Node<'a>) -> impl Iterator<Item = Node<'a>> {
    node.children()
}

fn child<'a>(node: Node<'a>, name: &str) -> Option<Node<'a>> {
    children(node).find(|child| child.name() == name.as_bytes())
}

pub(crate) fn bytes<'a>(node: Node<'a>, name: &str) -> Option<&'a [u8]> {
    node.property(name)
}

pub(crate) fn cells(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|cell| u32::from_be_bytes([cell[0], cell[1], cell[2], cell[3]]))
}

/// Returns a number of one or two cells.
pub(crate) fn number(node: Node, name: &str) -> Option<u64> {
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

pub(crate) fn phandle(node: Node) -> Option<u32> {
    number(node, "phandle").map(|phandle| phandle as u32)
}

pub(crate) fn is_compatible(node: Node, name: &str) -> bool {
    bytes(node, "compatible").is_some_and(|list| list.split(|&byte| byte == 0).any(|entry| entry == name.as_bytes()))
}

pub(crate) fn is_enabled(node: Node) -> bool {
    matches!(text(node, "status"), None | Some("okay" | "ok"))
}

/// Returns address and length of each entry of `reg`, in the cells that the bus prescribes.
fn registers<'a>(node: Node<'a>, bus: Node) -> impl Iterator<Item = (u64, u64)> + use<'a> {
    let (value, address, size) = match bus_cells(bus) {
        Some((address, size)) => (bytes(node, "reg").unwrap_or(&[]), address * 4, size * 4),
        None => (&[][..], 4, 4),
    };
    value.chunks_exact(address + size).map(move |entry| (wide(&entry[..address]), wide(&entry[address..])))
}

/// The remark about a device that reads and writes memory behind the caches of harts. The kernel would read old bytes,
/// or the device: each access would need instructions for caches (Zicbom) or pages without them, and the lines of the
/// caches that a driver's ring shares with the device could not be shared.
pub(crate) const NOT_COHERENT: (&str, &str) =
    ("dma-noncoherent", "here or of a bus above says that the caches are not seen: the device is not used");

/// A bus, whose children have addresses of their own.
pub(crate) struct Bus<'a, 'b> {
    node: Node<'a>,
    /// The bus that it is a part of; the root is a part of none.
    above: Option<&'b Bus<'a, 'b>>,
}

impl<'a> Bus<'a, '_> {
    /// Returns physical address and length of the first entry of a node's `reg`; `None` if there is none, or a bus does
    /// not pass all of it on.
    pub(crate) fn registers(&self, node: Node<'a>) -> Option<(u64, u64)> {
        let (address, length) = registers(node, self.node).next()?;
        let address = self.physical(address, length)?;
        address.checked_add(length)?;
        Some((address, length))
    }

    /// Returns the physical address of a range of addresses on the bus.
    pub(crate) fn physical(&self, mut address: u64, length: u64) -> Option<u64> {
        let mut bus = self;
        // Ends: a bus is deeper than the one above.
        while let Some(above) = bus.above {
            address = bus.passed_on(above.node, address, length)?;
            bus = above;
        }
        Some(address)
    }

    /// Returns whether a device on this bus sees what is in the caches of harts. The mark that is nearest to the device
    /// counts, its own or that of a bus; without one it does.
    pub(crate) fn is_coherent(&self, node: Node<'a>) -> bool {
        let mark = |node| {
            let is_coherent = bytes(node, "dma-coherent").is_some();
            (is_coherent || bytes(node, NOT_COHERENT.0).is_some()).then_some(is_coherent)
        };
        let buses = core::iter::successors(Some(self), |bus| bus.above);
        core::iter::once(node).chain(buses.map(|bus| bus.node)).find_map(mark).unwrap_or(true)
    }

    /// Returns the address on the bus above of a range of addresses on this one.
    fn passed_on(&self, above: Node<'a>, address: u64, length: u64) -> Option<u64> {
        let ranges = bytes(self.node, "ranges")?;
        if ranges.is_empty() {
            return Some(address);
        }
        let (own, size) = bus_cells(self.node)?;
        let (outer, _) = bus_cells(above)?;
        let last = address.checked_add(length.max(1) - 1)?;
        ranges.chunks_exact((own + outer + size) * 4).find_map(|entry| {
            let (start, rest) = entry.split_at(own * 4);
            let (target, bytes) = rest.split_at(outer * 4);
            let (start, target, bytes) = (wide(start), wide(target), wide(bytes));
            let is_inside = start <= address && last - start < bytes;
            if is_inside { target.checked_add(address - start) } else { None }
        })
    }
}

/// Returns the number of cells of an address and of a length on a bus; `None` if they are not one or two.
fn bus_cells(bus: Node) -> Option<(usize, usize)> {
    let address = number(bus, "#address-cells").unwrap_or(2);
    let size = number(bus, "#size-cells").unwrap_or(1);
    let are_plausible = (1..=2).contains(&address) && (1..=2).contains(&size);
    are_plausible.then_some((address as usize, size as usize))
}

/// Returns the number in one or two cells.
pub(crate) fn wide(bytes: &[u8]) -> u64 {
    cells(bytes).fold(0, |value, cell| value << 32 | u64::from(cell))
}

pub(crate) fn each_node<'a>(root: Node<'a>, visit: &mut impl FnMut(Node<'a>, &Bus<'a, '_>)) {
    fn inner<'a>(bus: &Bus<'a, '_>, depth: usize, visit: &mut impl FnMut(Node<'a>, &Bus<'a, '_>)) {
        for child in children(bus.node) {
            visit(child, bus);
            if depth < MAXIMUM_DEPTH {
                inner(&Bus { node: child, above: Some(bus) }, depth + 1, visit);
            }
        }
    }
    inner(&Bus { node: root, above: None }, 0, visit);
}

/// Returns a node, with physical address and length of its registers.
pub(crate) fn find<'a>(
    root: Node<'a>,
    mut wanted: impl FnMut(Node<'a>) -> bool,
) -> Option<(Node<'a>, Option<(u64, u64)>)> {
    let mut found = None;
    each_node(root, &mut |node, bus| {
        if found.is_none() && wanted(node) {
            found = Some((node, bus.registers(node)));
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

    const TREES: [&[u8]; 4] = [AIA, PLIC, crate::boards_tests::SIFIVE_U, crate::boards_tests::ICICLE];

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
        assert_eq!(found.serial, Some(Serial { device, kind: UartKind::Ns16550 { shift: 0 } }));
        assert!(found.ethernet.is_empty() && found.remarks.is_empty());
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
            0..TREES.len(),
            prop::collection::vec(change, 0..6),
            prop::collection::vec(word, 0..6),
            prop::collection::vec(copy, 0..3),
            prop::option::weighted(0.1, any::<prop::sample::Index>()),
        )
            .prop_map(|(which, changes, words, copies, cut)| {
                let mut tree = TREES[which].to_vec();
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
        property::fuzz("device_tree", &TREES, |tree| {
            let _ = find_test_device(tree);
            for hart in [0, 1] {
                if let Ok(found) = read(hart, tree) {
                    check(&found, &boot(hart));
                }
            }
        });
    }

    proptest! {
        #![proptest_config(property::cases(4000))]

        #[test]
        fn damaged_trees_are_rejected_or_plausible(tree in mutated()) {
            let _ = find_test_device(&tree);
            for hart in [0, 1] {
                if let Ok(found) = read(hart, &tree) {
                    check(&found, &boot(hart));
                }
            }
        }

        #[test]
        fn bytes_that_are_no_tree_are_rejected(tree in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(read(0, &tree).is_err());
        }
    }
}
