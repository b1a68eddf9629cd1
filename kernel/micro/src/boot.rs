//! Boot: from free memory to the first thread.
//!
//! The first thread, the root task, gets all free memory, as untyped capabilities, and all rights. The layout of its
//! capability space and of the boot information is seL4's (`abi_sel4::boot`).

use core::fmt;

use abi_sel4::boot::{CHUNK_DEVICE_TREE, ChunkHeader, EXTRA_OFFSET, slot as fixed};
use abi_sel4::{configuration, object};
use elf::abi::{EI_NIDENT, EM_RISCV, ET_EXEC, PT_LOAD};
use elf::endian::LittleEndian;
use elf::file::{Class, ELF64_EHDR_TAILSIZE, FileHeader, parse_ident};
use elf::parse::ParseAt as _;
use elf::segment::{ProgramHeader, SegmentTable};
use hal_api::{BootInformation, Machine as _};
use heapless::Vec;
use objects::{
    AsidPool, Capability, FrameSize, Lineage, Mapping, PageRights, PageTable, PriorityQueues, Ref, Slot, Tcb,
    ThreadState, VirtualRoot, Words, claim, claim_slice, clear, copy_in, frame_words, own,
};
use platform::{Controller, Description, Machine};

use crate::boot_words::Configuration;
use crate::kernel::Kernel;
use crate::state::{IRQ_SLOTS, Period};
use crate::{KERNEL, asynchronous, derivation, vspace};

const PAGE: u64 = 1 << object::PAGE_BITS;
/// Size of a thread in bytes.
const THREAD_SIZE: u64 = 1 << object::TCB_BITS;
/// Size of a slot in bytes.
const SLOT_SIZE: u64 = 1 << object::SLOT_BITS;
/// The identifier of the first address space.
const FIRST_ASID: u16 = 1;
/// Logarithms of the possible sizes of untyped memory.
const UNTYPED_BITS: core::ops::RangeInclusive<u32> =
    object::MINIMUM_UNTYPED_BITS as u32..=object::MAXIMUM_UNTYPED_BITS as u32;
/// Size of the header of a chunk in bytes.
const CHUNK_HEADER: u64 = size_of::<ChunkHeader>() as u64;
/// The largest number of ranges of free memory.
const MAXIMUM_REGIONS: usize = 96;

/// The reason why the kernel cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// There is no root task.
    NoRootTask,
    /// The root task is not an executable of this machine.
    NotAnExecutable(&'static str),
    /// There is not enough memory for the first objects.
    NoMemory,
    /// The root CNode has too few slots for the capabilities.
    NoSlots,
    /// The loader has placed no root task in memory.
    NothingLoaded,
    /// The root task overlaps other memory in use.
    Overlap {
        /// First byte of the root task, and first byte behind.
        root: (u64, u64),
        /// Name of the other memory.
        what: &'static str,
        /// First byte of the other memory, and first byte behind.
        place: (u64, u64),
    },
    /// The root task is outside the memory that the kernel may use.
    NotMemory {
        /// First byte of the root task, and first byte behind.
        root: (u64, u64),
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Failure::NoRootTask => {
                formatter.write_str("there is no root task: pass its ELF file as initial file system")
            }
            Failure::NotAnExecutable(reason) => write!(formatter, "the root task cannot be started: {reason}"),
            Failure::NoMemory => formatter.write_str("there is not enough memory for the root task"),
            Failure::NothingLoaded => formatter.write_str("the loader has put no root task into memory"),
            Failure::Overlap { root, what, place } => write!(
                formatter,
                "the root task at {:#x} to {:#x} overlaps {what} at {:#x} to {:#x}",
                root.0, root.1, place.0, place.1
            ),
            Failure::NotMemory { root } => write!(
                formatter,
                "the root task at {:#x} to {:#x} is not all in memory that the kernel may use",
                root.0, root.1
            ),
            Failure::NoSlots => {
                formatter.write_str("the root task's capabilities do not fit into its capability space")
            }
        }
    }
}

/// The source of the root task.
#[derive(Clone, Copy, Debug)]
pub enum RootTask<'a> {
    /// A loader has placed it in memory.
    Loaded {
        /// Physical address of its first page.
        start: u64,
        /// Physical address behind its last page.
        end: u64,
        /// Physical minus virtual address.
        offset: u64,
        /// Virtual address of its entry point.
        entry: u64,
    },
    /// An ELF file and, unless it is part of something else, the memory that it lies in, which is free once the
    /// contents of the file have been copied.
    File(&'a [u8], Option<(u64, u64)>),
}

/// Ranges of physical addresses.
type Regions = Vec<(u64, u64), MAXIMUM_REGIONS>;

/// Memory without an owner.
struct Free {
    regions: Regions,
}

impl Free {
    fn new(regions: &[(u64, u64)]) -> Free {
        let mut free = Free { regions: Regions::new() };
        for &(start, end) in regions {
            let _ = free.regions.push((start, end));
        }
        free
    }

    /// Removes memory that has an owner.
    fn remove(&mut self, start: u64, end: u64) {
        let mut rest = Regions::new();
        for &(from, to) in &self.regions {
            if from < start.min(to) {
                let _ = rest.push((from, start.min(to)));
            }
            if end.max(from) < to {
                let _ = rest.push((end.max(from), to));
            }
        }
        self.regions = rest;
    }

    /// Takes memory of this size, aligned to `alignment`, and clears it.
    fn take(&mut self, size: u64, alignment: u64) -> Result<u64, Failure> {
        // The memory is taken from the end of the first region with enough room, so that small regions are not split.
        let fits = |&(start, end): &(u64, u64)| {
            let at = end.checked_sub(size)? / alignment * alignment;
            (at >= start).then_some(at)
        };
        let at = self.regions.iter().find_map(fits).ok_or(Failure::NoMemory)?;
        self.remove(at, at + size);
        clear(at, size);
        Ok(at)
    }
}

/// The root CNode while it is filled.
struct RootCNode {
    slots: Ref<Slot>,
    bits: u8,
    next: u64,
}

impl RootCNode {
    fn put(&self, index: u64, capability: Capability) -> Ref<Slot> {
        let slot = self.slots.slot(index);
        slot.capability.set(capability);
        slot.set_lineage(Lineage::Original);
        slot
    }

    fn push(&mut self, capability: Capability) -> Result<(), Failure> {
        if self.next >= 1 << self.bits {
            return Err(Failure::NoSlots);
        }
        self.put(self.next, capability);
        self.next += 1;
        Ok(())
    }
}

/// Offsets of the fields of [`abi_sel4::BootInfo`], in words.
mod word {
    use abi_sel4::BootInfo;
    use core::mem::offset_of;

    pub const EXTRA_LENGTH: usize = offset_of!(BootInfo, extra_length) / 8;
    pub const NODE: usize = offset_of!(BootInfo, node) / 8;
    pub const NODES: usize = offset_of!(BootInfo, nodes) / 8;
    pub const IPC_BUFFER: usize = offset_of!(BootInfo, ipc_buffer) / 8;
    pub const EMPTY: usize = offset_of!(BootInfo, empty) / 8;
    pub const IMAGE_FRAMES: usize = offset_of!(BootInfo, user_image_frames) / 8;
    pub const IMAGE_PAGING: usize = offset_of!(BootInfo, user_image_paging) / 8;
    pub const EXTRA_PAGES: usize = offset_of!(BootInfo, extra_pages) / 8;
    pub const CNODE_BITS: usize = offset_of!(BootInfo, cnode_size_bits) / 8;
    pub const DOMAIN: usize = offset_of!(BootInfo, domain) / 8;
    pub const UNTYPED: usize = offset_of!(BootInfo, untyped) / 8;
    pub const UNTYPED_LIST: usize = offset_of!(BootInfo, untyped_list) / 8;
}

/// Writes a word of a page.
fn put(page: u64, index: usize, value: u64) {
    let start = index / Words::COUNT * size_of::<Words>();
    frame_words(page + start as u64).set(index % Words::COUNT, value);
}

fn put_range(page: u64, index: usize, range: (u64, u64)) {
    put(page, index, range.0);
    put(page, index + 1, range.1);
}

/// Extent and entry point of the root task's image, from its file.
struct Layout {
    start: u64,
    end: u64,
    entry: u64,
}

/// An ELF file of this machine. Its sections, which say nothing about an image, only have to be there.
struct Parsed<'a> {
    file: &'a [u8],
    segments: SegmentTable<'a, LittleEndian>,
}

impl<'a> Parsed<'a> {
    /// Returns the headers of the segments in memory, each with its contents; `None` for one that is cut off.
    fn loaded(&self) -> impl Iterator<Item = Option<(ProgramHeader, &'a [u8])>> {
        let file = self.file;
        self.segments.iter().filter(|header| header.p_type == PT_LOAD).map(move |header| {
            let end = header.p_offset.checked_add(header.p_filesz)?;
            let contents = file.get(header.p_offset as usize..end as usize)?;
            Some((header, contents))
        })
    }
}

fn read_layout(file: &[u8]) -> Result<(Layout, Parsed<'_>), Failure> {
    let damaged = Failure::NotAnExecutable("its file is damaged, or no ELF file");
    let tail = file.get(EI_NIDENT..EI_NIDENT + ELF64_EHDR_TAILSIZE).ok_or(damaged)?;
    let kind = parse_ident::<LittleEndian>(file).map_err(|_| damaged)?;
    let header = FileHeader::parse_tail(kind, tail).map_err(|_| damaged)?;
    if header.e_machine != EM_RISCV || header.class != Class::ELF64 {
        return Err(Failure::NotAnExecutable("it was built for another machine"));
    }
    if header.e_type != ET_EXEC {
        return Err(Failure::NotAnExecutable("it is not linked to a fixed address"));
    }
    let table = |start: u64, count: u16, size: u16| {
        let end = start.checked_add(u64::from(count) * u64::from(size))?;
        file.get(start as usize..end as usize)
    };
    // Sections are at the end of a file: one that ends before them was cut off.
    let sections = table(header.e_shoff, header.e_shnum, header.e_shentsize);
    let segments = table(header.e_phoff, header.e_phnum, header.e_phentsize);
    let has_size = usize::from(header.e_phentsize) == ProgramHeader::size_for(header.class);
    let segments = segments.filter(|_| sections.is_some() && has_size).ok_or(damaged)?;
    let parsed = Parsed { file, segments: SegmentTable::new(header.endianness, header.class, segments) };
    let (mut start, mut end) = (u64::MAX, 0);
    for segment in parsed.loaded() {
        let (header, _) = segment.ok_or(damaged)?;
        let last = header.p_vaddr.checked_add(header.p_memsz).ok_or(damaged)?;
        if last >= configuration::USER_TOP || header.p_filesz > header.p_memsz {
            return Err(Failure::NotAnExecutable("it does not fit into an address space"));
        }
        if header.p_memsz > 0 {
            start = start.min(header.p_vaddr / PAGE * PAGE);
            end = end.max(last.next_multiple_of(PAGE));
        }
    }
    if !(start..end).contains(&header.e_entry) {
        return Err(Failure::NotAnExecutable("it has no instructions where it starts"));
    }
    Ok((Layout { start, end, entry: header.e_entry }, parsed))
}

/// The root task's image in memory.
#[derive(Clone, Copy)]
struct Image {
    /// Physical address of its first page.
    start: u64,
    /// Physical address behind its last page.
    end: u64,
    /// Physical minus virtual address.
    offset: u64,
    /// Virtual address of its entry point.
    entry: u64,
}

/// Finds the root task's image in memory, or loads it.
fn place(root: RootTask, free: &mut Free) -> Result<Image, Failure> {
    match root {
        RootTask::Loaded { start, end, offset, entry } => {
            free.remove(start / PAGE * PAGE, end.next_multiple_of(PAGE));
            Ok(Image { start, end, offset, entry })
        }
        RootTask::File([], _) => Err(Failure::NoRootTask),
        RootTask::File(file, place) => {
            let image = load(file, free)?;
            // The file is not read any more.
            if let Some((start, end)) = place {
                let _ = free.regions.push((start.next_multiple_of(PAGE), end / PAGE * PAGE));
            }
            Ok(image)
        }
    }
}

/// Loads an ELF file's contents into memory.
fn load(file: &[u8], free: &mut Free) -> Result<Image, Failure> {
    let (layout, parsed) = read_layout(file)?;
    let size = layout.end - layout.start;
    let start = free.take(size, PAGE)?;
    for (header, contents) in parsed.loaded().flatten().filter(|(_, contents)| !contents.is_empty()) {
        copy_in(start + (header.p_vaddr - layout.start), contents);
    }
    let offset = start.wrapping_sub(layout.start);
    Ok(Image { start, end: start + size, offset, entry: layout.entry })
}

/// Addresses of devices that the kernel keeps for itself.
fn kept(description: &Description) -> Vec<(u64, u64), 8> {
    /// The core-local interruptor, or a device with the same registers, which belongs to the firmware.
    const CLINT: (u64, u64) = (0x200_0000, 0x201_0000);
    let mut kept = Vec::new();
    let mut keep = |start: u64, length: u64| {
        let _ = kept.push((start / PAGE * PAGE, (start + length).next_multiple_of(PAGE)));
    };
    keep(CLINT.0, CLINT.1 - CLINT.0);
    if let Some((start, length)) = description.user_interrupts {
        // With the slots of UINTC a program could interrupt every other program and read its pending vectors.
        keep(start, length);
    }
    match &description.controller {
        Controller::None => {}
        Controller::Plic { registers, .. } => keep(registers.0, registers.1),
        Controller::Aplic { registers, imsic, .. } => {
            keep(registers.0, registers.1);
            if let Some(imsic) = imsic {
                keep(imsic.pages.0, imsic.pages.1);
            }
        }
    }
    kept
}

/// Addresses that may have devices which belong to programs.
fn devices(description: &Description) -> Regions {
    let mut devices = Free::new(&[(0, configuration::DEVICE_TOP)]);
    for &(start, end) in description.not_devices.iter().chain(&kept(description)) {
        devices.remove(start, end);
    }
    devices.regions
}

/// Checks that a root task lies in memory without any other use.
fn check_place(root: (u64, u64), memory: &[(u64, u64)], taken: &[(&'static str, (u64, u64))]) -> Result<(), Failure> {
    if root.0 >= root.1 {
        return Err(Failure::NothingLoaded);
    }
    for &(what, place) in taken {
        if root.0 < place.1 && place.0 < root.1 {
            return Err(Failure::Overlap { root, what, place });
        }
    }
    if !memory.iter().any(|range| range.0 <= root.0 && root.1 <= range.1) {
        return Err(Failure::NotMemory { root });
    }
    Ok(())
}

/// Creates the root task of this machine and its capabilities. `nodes` harts will run.
///
/// # Errors
/// [`Failure`]; the machine cannot be used then.
pub fn start(
    description: &Description,
    boot: &BootInformation,
    root: RootTask,
    nodes: usize,
    configuration: &Configuration,
) -> Result<(), Failure> {
    let memory = &description.memory;
    let tree = (boot.device_tree_address, boot.device_tree_address + boot.device_tree.len() as u64);
    let taken = [("the kernel", boot.image), ("the device tree", tree)];
    match root {
        RootTask::Loaded { start, end, .. } | RootTask::File(_, Some((start, end))) => {
            check_place((start, end), memory, &taken)?;
        }
        RootTask::File(_, None) => {}
    }
    objects::permit(memory.first().map_or(0, |range| range.0), memory.last().map_or(0, |range| range.1));
    let kernel = KERNEL.lock();
    kernel.node_count.set(nodes);
    kernel.tick_length.set((description.timebase_frequency * configuration.tick_ms / 1000).max(1));
    let devices = devices(description);
    kernel.start_slots(crate::machine::user_interrupts(description));
    for (node, &id) in kernel.nodes.iter().zip(&description.hart_ids) {
        node.hart_id.set(id as u16);
    }
    build(&kernel, &description.free_memory, &devices, root, boot.device_tree, configuration)
}

/// The first objects and pages, by their physical addresses.
struct Objects {
    cnode: Ref<Slot>,
    irq_slots: Ref<Slot>,
    pool: Ref<AsidPool>,
    table: Ref<PageTable>,
    tcb: Ref<Tcb>,
    buffer: u64,
    information: u64,
    /// Physical address of the extra boot information; 0 for none.
    extra: u64,
}

impl Objects {
    /// Allocates the objects, and each hart's objects. The largest come first, so that alignment wastes nothing.
    fn take(
        kernel: &Kernel,
        free: &mut Free,
        extra_size: u64,
        configuration: &Configuration,
    ) -> Result<Objects, Failure> {
        let cnode_size = SLOT_SIZE << configuration.root_cnode_bits;
        let cnode = claim_slice(free.take(cnode_size, cnode_size)?, 1 << configuration.root_cnode_bits);
        let irq_slots = claim_slice(free.take(IRQ_SLOTS * SLOT_SIZE, PAGE)?, IRQ_SLOTS);
        let pool = claim(free.take(PAGE, PAGE)?);
        let table = claim(free.take(PAGE, PAGE)?);
        let tcb = claim(free.take(THREAD_SIZE, THREAD_SIZE)?);
        let buffer = free.take(PAGE, PAGE)?;
        take_queues(kernel, free, configuration.domains)?;
        for node in &kernel.nodes[..kernel.node_count.get()] {
            let proxy = claim(free.take(THREAD_SIZE, THREAD_SIZE)?);
            asynchronous::make_proxy(proxy, free.take(PAGE, PAGE)?);
            node.proxy.set(Some(proxy));
            if crate::machine::guest_files() > 0 {
                node.virtual_root.set(Some(VirtualRoot::claim(free.take(VirtualRoot::SIZE, VirtualRoot::SIZE)?)));
            }
            if kernel.interrupt_slots.exist() {
                node.sender_table.claim(free.take(PAGE, PAGE)?);
            }
        }
        let information = free.take(PAGE, PAGE)?;
        let extra = if extra_size > 0 { free.take(extra_size, PAGE)? } else { 0 };
        Ok(Objects { cnode, irq_slots, pool, table, tcb, buffer, information, extra })
    }
}

/// Allocates the ready queues of each domain: of threads, for each hart, and of handlers.
fn take_queues(kernel: &Kernel, free: &mut Free, domains: u8) -> Result<(), Failure> {
    const SIZE: u64 = size_of::<PriorityQueues>() as u64;
    let sets = kernel.node_count.get() as u64 + 1;
    let start = free.take((SIZE * sets * u64::from(domains)).next_multiple_of(PAGE), PAGE)?;
    for domain in 0..domains {
        let queues = |set: u64| claim(start + SIZE * (u64::from(domain) * sets + set));
        kernel.handlers.set(domain.into(), queues(0));
        for (node, set) in kernel.nodes[..kernel.node_count.get()].iter().zip(1..) {
            node.ready.set(domain.into(), queues(set));
        }
    }
    Ok(())
}

/// Virtual addresses in the root task: its image, the IPC buffer, the boot information, and the extra boot information.
struct Addresses {
    image: u64,
    buffer: u64,
    information: u64,
    extra: u64,
    end: u64,
}

impl Addresses {
    fn of(image: &Image, extra_size: u64) -> Result<Addresses, Failure> {
        let start = image.start.wrapping_sub(image.offset);
        let buffer = (start + (image.end - image.start)).next_multiple_of(PAGE);
        let information = buffer + PAGE;
        let extra = information + PAGE;
        let end = extra + extra_size;
        if end > configuration::USER_TOP {
            return Err(Failure::NotAnExecutable("it does not fit into an address space"));
        }
        Ok(Addresses { image: start, buffer, information, extra, end })
    }
}

const fn mapping(address: u64) -> Option<Mapping> {
    Some(Mapping { asid: FIRST_ASID, address })
}

/// Makes the capability of a frame of the root task.
fn page(base: u64, address: u64) -> Capability {
    Capability::Frame {
        base,
        size: FrameSize::Small,
        rights: PageRights::ReadWrite,
        device: false,
        mapping: mapping(address),
    }
}

/// Ranges of slots of the root task's capabilities: first slot, and first slot behind.
struct Ranges {
    paging: (u64, u64),
    extra: (u64, u64),
    image: (u64, u64),
}

/// As [`start`], for this kernel and this memory.
pub(crate) fn build(
    kernel: &Kernel,
    free_memory: &[(u64, u64)],
    devices: &[(u64, u64)],
    root: RootTask,
    device_tree: &[u8],
    configuration: &Configuration,
) -> Result<(), Failure> {
    let cnode_bits = configuration.root_cnode_bits;
    let mut free = Free::new(free_memory);
    let image = place(root, &mut free)?;
    let extra_length = if device_tree.is_empty() { 0 } else { CHUNK_HEADER + device_tree.len() as u64 };
    let extra_size = extra_length.next_multiple_of(PAGE);
    let objects = Objects::take(kernel, &mut free, extra_size, configuration)?;
    let addresses = Addresses::of(&image, extra_size)?;

    vspace::copy_kernel_half(objects.table);
    objects.pool.roots[usize::from(FIRST_ASID)].set(Some(objects.table));
    kernel.asid_pools[0].set(Some(objects.pool));
    let mut space = RootCNode { slots: objects.cnode, bits: cnode_bits, next: fixed::FIRST_FREE as u64 };
    let ranges = fill_address_space(&mut space, &mut free, &image, &objects, &addresses)?;
    let own = put_fixed(&space, &objects, &addresses);
    let untyped = give_memory(&mut space, objects.information, devices, &free.regions, configuration.untypeds)?;

    let put = |index, value| put(objects.information, index, value);
    let put_range = |index, range| put_range(objects.information, index, range);
    put(word::EXTRA_LENGTH, extra_length);
    put(word::NODE, 0);
    put(word::NODES, kernel.node_count.get() as u64);
    put(word::IPC_BUFFER, addresses.buffer);
    put_range(word::EMPTY, (space.next, 1 << cnode_bits));
    put_range(word::IMAGE_FRAMES, ranges.image);
    put_range(word::IMAGE_PAGING, ranges.paging);
    put_range(word::EXTRA_PAGES, ranges.extra);
    put(word::CNODE_BITS, u64::from(cnode_bits));
    put(word::DOMAIN, configuration.schedule.first().map_or(0, |period| period.domain.into()));
    put_range(word::UNTYPED, untyped);
    if extra_length > 0 {
        write_device_tree(objects.extra, device_tree);
        debug_assert_eq!(addresses.extra, addresses.information + EXTRA_OFFSET as u64);
    }

    configure(kernel, configuration);
    prepare_thread(kernel, &objects, &addresses, &own, image.entry);
    kernel.interrupts.set_slots(objects.irq_slots);
    kernel.root.set(Some(own.root));
    kernel.node().current.set(Some(objects.tcb));
    Ok(())
}

/// Stores the settings of the boot words that the kernel uses after boot.
fn configure(kernel: &Kernel, configuration: &Configuration) {
    kernel.turn.set(configuration.slice);
    kernel.error_text.set(configuration.error_text);
    kernel.calls.set(configuration.calls);
    kernel.domains.set_known(configuration.domains);
    kernel.domains.set_period(0, Period { domain: 0, ticks: Period::EVER });
    for (index, &period) in configuration.schedule.iter().enumerate() {
        kernel.domains.set_period(index, period);
    }
    if !configuration.schedule.is_empty() {
        kernel.domains.start_at(0);
        kernel.note_domain();
    }
}

/// Maps the root task's memory, and puts capabilities to page tables, extra boot information and image into its slots,
/// in this order.
fn fill_address_space(
    space: &mut RootCNode,
    free: &mut Free,
    image: &Image,
    objects: &Objects,
    addresses: &Addresses,
) -> Result<Ranges, Failure> {
    let table = objects.table;
    let first = space.next;
    for address in (addresses.image / PAGE * PAGE..addresses.end).step_by(PAGE as usize) {
        while vspace::boot_needs_table(table, address) {
            let below: Ref<PageTable> = claim(free.take(PAGE, PAGE)?);
            let at = vspace::boot_map_table(table, address, below);
            space.push(Capability::PageTable { table: below, mapping: mapping(at) })?;
        }
    }
    let paging = (first, space.next);
    for address in (addresses.extra..addresses.end).step_by(PAGE as usize) {
        let physical = objects.extra + (address - addresses.extra);
        vspace::boot_map_page(table, address, physical);
        space.push(page(physical, address))?;
    }
    let extra = (paging.1, space.next);
    for physical in (image.start..image.end).step_by(PAGE as usize) {
        let address = physical.wrapping_sub(image.offset);
        vspace::boot_map_page(table, address, physical);
        space.push(page(physical, address))?;
    }
    vspace::boot_map_page(table, addresses.buffer, objects.buffer);
    vspace::boot_map_page(table, addresses.information, objects.information);
    Ok(Ranges { paging, extra, image: (extra.1, space.next) })
}

/// The slots whose capabilities are copied to the thread's own slots.
struct OwnSlots {
    root: Ref<Slot>,
    table: Ref<Slot>,
    buffer: Ref<Slot>,
}

/// Puts the initial capabilities into their fixed slots.
fn put_fixed(space: &RootCNode, objects: &Objects, addresses: &Addresses) -> OwnSlots {
    let guard_bits = object::WORD_BITS as u8 - space.bits;
    let put = |index: usize, capability| space.put(index as u64, capability);
    put(fixed::THREAD, Capability::Thread { tcb: objects.tcb });
    put(fixed::IRQ_CONTROL, Capability::IrqControl);
    put(fixed::ASID_CONTROL, Capability::AsidControl);
    put(fixed::ASID_POOL, Capability::AsidPool { pool: objects.pool, base: 0 });
    put(fixed::BOOT_INFO, page(objects.information, addresses.information));
    put(fixed::DOMAIN, Capability::Domain);
    OwnSlots {
        root: put(fixed::CNODE, Capability::CNode { slots: objects.cnode, radix: space.bits, guard_bits, guard: 0 }),
        table: put(fixed::ADDRESS_SPACE, Capability::PageTable { table: objects.table, mapping: mapping(0) }),
        buffer: put(fixed::IPC_BUFFER, page(objects.buffer, addresses.buffer)),
    }
}

/// Gives the root task untyped capabilities to all remaining memory, and describes them in the boot information.
/// Returns the slots of the capabilities.
fn give_memory(
    space: &mut RootCNode,
    information: u64,
    devices: &[(u64, u64)],
    ordinary: &[(u64, u64)],
    limit: usize,
) -> Result<(u64, u64), Failure> {
    let first = space.next;
    let mut count = 0;
    let regions = devices.iter().map(|&range| (range, true)).chain(ordinary.iter().map(|&range| (range, false)));
    for ((from, to), device) in regions {
        let mut at = from.next_multiple_of(1 << UNTYPED_BITS.start());
        while at < to {
            // The largest power of two that is aligned and fits.
            let aligned = if at == 0 { *UNTYPED_BITS.end() } else { at.trailing_zeros() };
            let bits = aligned.min((to - at).ilog2()).min(*UNTYPED_BITS.end());
            if bits < *UNTYPED_BITS.start() || count == limit {
                break;
            }
            // Ordinary memory counts as used, so that it is cleared before the first objects.
            let used = if device { 0 } else { 1 << bits };
            space.push(Capability::Untyped { base: at, bits: bits as u8, device, used })?;
            put(information, word::UNTYPED_LIST + 2 * count, at);
            put(information, word::UNTYPED_LIST + 2 * count + 1, u64::from(bits) | u64::from(device) << 8);
            count += 1;
            at += 1 << bits;
        }
    }
    Ok((first, space.next))
}

/// Writes the device tree as a chunk of extra boot information.
fn write_device_tree(extra: u64, device_tree: &[u8]) {
    put(extra, 0, CHUNK_DEVICE_TREE);
    put(extra, 1, CHUNK_HEADER + device_tree.len() as u64);
    copy_in(extra + CHUNK_HEADER, device_tree);
}

/// Makes the root task's thread ready to run from its entry point.
fn prepare_thread(kernel: &Kernel, objects: &Objects, addresses: &Addresses, slots: &OwnSlots, entry: u64) {
    let tcb = objects.tcb;
    for (source, index) in [(slots.root, own::CSPACE), (slots.table, own::VSPACE), (slots.buffer, own::BUFFER)] {
        derivation::insert_derived(source.capability.get(), source, tcb.own_slot(index));
    }
    tcb.buffer_address.set(addresses.buffer);
    tcb.register::<10>().set(addresses.information);
    tcb.pc().set(entry);
    tcb.fault_pc.set(entry);
    tcb.priority.set(configuration::MAXIMUM_PRIORITY as u8);
    tcb.maximum_priority.set(configuration::MAXIMUM_PRIORITY as u8);
    tcb.time_slice.set(kernel.turn.get());
    tcb.domain.set(kernel.domains.current());
    kernel.provide_reply_master(tcb);
    tcb.set_state_word(ThreadState::Running);
}

/// Starts the ticks of a hart: the last step before [`run`](crate::run), on every hart.
pub fn join() {
    if Machine::hart() != 0 {
        crate::machine::prepare_guest_files();
    }
    platform::prepare_user_level();
    let kernel = KERNEL.enter(Machine::hart());
    kernel.start_ticks();
    Machine::synchronise_instructions(hal_api::HartSet::EMPTY.with(Machine::hart()));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: [(u64, u64); 2] = [(0x8000_0000, 0x8010_0000), (0x8020_0000, 0x9000_0000)];
    const TAKEN: [(&str, (u64, u64)); 2] =
        [("the kernel", (0x8020_0000, 0x8030_0000)), ("the device tree", (0x8100_0000, 0x8100_4000))];

    /// Two harts, APLIC and IMSIC, UINTC, 256 MiB.
    const UINTC: &[u8] = include_bytes!("../../platform/fixtures/virt-uintc.dtb");

    #[test]
    fn the_interrupt_controllers_belong_to_the_kernel() {
        let boot = BootInformation {
            device_tree: &[],
            device_tree_address: 0x8700_0000,
            boot_hart_id: 0,
            image: (0x8020_0000, 0x8040_0000),
        };
        let description = Description::read(&boot, UINTC).unwrap();
        let has = |address| devices(&description).iter().any(|&(start, end)| (start..end).contains(&address));
        let (start, length) = description.user_interrupts.unwrap();
        for register in (start..start + length).step_by(32) {
            assert!(!has(register), "a slot of UINTC at {register:#x}");
        }
        assert!(has(start - 1) && has(start + length), "the registers beside it are no part of it");
        let Controller::Aplic { registers, imsic: Some(imsic), .. } = description.controller else { panic!() };
        for (start, length) in [registers, imsic.pages, (0x200_0000, 0x1_0000), (0x8000_0000, 0x1000_0000)] {
            assert!(!has(start) && !has(start + length - 1), "{start:#x}");
        }
        assert!(has(0x1000_0000), "the serial line is a program's device");
    }

    fn complaint(start: u64, end: u64) -> String {
        check_place((start, end), &MEMORY, &TAKEN).map_or_else(|failure| failure.to_string(), |()| "none".into())
    }

    #[test]
    fn a_root_task_lies_in_memory_that_is_free() {
        assert_eq!(complaint(0x8030_0000, 0x8100_0000), "none");
        assert_eq!(complaint(0x8100_4000, 0x9000_0000), "none");
        assert_eq!(complaint(0, 0), "the loader has put no root task into memory");
        assert_eq!(complaint(0x8030_0000, 0x8030_0000), "the loader has put no root task into memory");
        for (start, end) in [(0x8020_0000, 0x8020_1000), (0x802f_f000, 0x8040_0000), (0x8000_0000, 0x8040_0000)] {
            assert_eq!(
                complaint(start, end),
                format!("the root task at {start:#x} to {end:#x} overlaps the kernel at 0x80200000 to 0x80300000")
            );
        }
        assert!(complaint(0x8030_0000, 0x8100_0001).contains("overlaps the device tree at 0x81000000 to 0x81004000"));
        for (start, end) in [(0x800f_f000, 0x8010_1000), (0x8fff_0000, 0x9000_1000), (0x1000, 0x2000)] {
            assert!(complaint(start, end).contains("is not all in memory that the kernel may use"));
        }
    }
}
