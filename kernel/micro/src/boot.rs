//! From free memory to the first thread.
//!
//! The first thread gets everything: all memory that is left, as untyped capabilities, and all rights. Where it finds
//! what, in the capability space and in boot information, is seL4's contract (`abi_sel4::boot`).

use core::fmt;

use abi_sel4::boot::{CHUNK_DEVICE_TREE, ChunkHeader, EXTRA_OFFSET, slot as fixed};
use abi_sel4::{configuration, object};
use elf::ElfBytes;
use elf::abi::{EM_RISCV, ET_EXEC, PT_LOAD};
use elf::endian::LittleEndian;
use hal_api::Machine as _;
use heapless::Vec;
use objects::{
    AsidPool, Capability, FrameSize, Lineage, Mapping, PageTable, Ref, Slot, Tcb, ThreadState, VirtualRights,
    VirtualRoot, claim, claim_slice, clear, copy_in, frame_words, own,
};
use platform::{Controller, Description, Machine};

use crate::kernel::Kernel;
use crate::node::TICKS_IN_A_TURN;
use crate::state::{IRQ_SLOTS, Period};
use crate::{KERNEL, asynchronous, derivation, vspace};

const PAGE: u64 = 1 << object::PAGE_BITS;
/// The memory of a thread.
const THREAD_SIZE: u64 = 1 << object::TCB_BITS;
/// The memory of a slot.
const SLOT_SIZE: u64 = 1 << object::SLOT_BITS;
/// The identifier of the first address space.
const FIRST_ASID: u16 = 1;
/// Sizes of the untyped memories, as powers of two.
const UNTYPED_BITS: core::ops::RangeInclusive<u32> =
    object::MINIMUM_UNTYPED_BITS as u32..=object::MAXIMUM_UNTYPED_BITS as u32;
/// Bytes before the contents of a chunk.
const CHUNK_HEADER: u64 = size_of::<ChunkHeader>() as u64;
/// The most ranges of free memory.
const MAXIMUM_REGIONS: usize = 96;

/// Why the kernel cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// There is no root task.
    NoRootTask,
    /// The root task is not an executable of this machine.
    NotAnExecutable(&'static str),
    /// There is not enough memory for the first objects.
    NoMemory,
    /// More capabilities are needed than the first capability space has slots.
    NoSlots,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Failure::NoRootTask => {
                formatter.write_str("there is no root task: pass its ELF file as initial file system")
            }
            Failure::NotAnExecutable(reason) => write!(formatter, "the root task cannot be started: {reason}"),
            Failure::NoMemory => formatter.write_str("there is not enough memory for the root task"),
            Failure::NoSlots => {
                formatter.write_str("the root task's capabilities do not fit into its capability space")
            }
        }
    }
}

/// The root task as it was found.
#[derive(Clone, Copy, Debug)]
pub enum RootTask<'a> {
    /// A loader has put it into memory.
    Loaded {
        /// Physical address of its first page.
        start: u64,
        /// Physical address behind its last page.
        end: u64,
        /// Physical minus virtual address.
        offset: u64,
        /// Where it starts.
        entry: u64,
    },
    /// An ELF file.
    File(&'a [u8]),
}

/// Ranges of physical addresses.
type Regions = Vec<(u64, u64), MAXIMUM_REGIONS>;

/// Memory that nobody has yet.
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

    /// Takes memory out that somebody has.
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

    /// Cleared memory of this size, aligned to `alignment`.
    fn take(&mut self, size: u64, alignment: u64) -> Result<u64, Failure> {
        // From the end of the first region, so that small memories at the beginning stay whole.
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

/// The first capability space while it is filled.
struct Space {
    slots: Ref<Slot>,
    next: u64,
}

impl Space {
    fn put(&self, index: u64, capability: Capability) -> Ref<Slot> {
        let slot = self.slots.slot(index);
        slot.capability.set(capability);
        slot.set_lineage(Lineage::Original);
        slot
    }

    fn push(&mut self, capability: Capability) -> Result<(), Failure> {
        if self.next >= 1 << configuration::ROOT_CNODE_SIZE_BITS {
            return Err(Failure::NoSlots);
        }
        self.put(self.next, capability);
        self.next += 1;
        Ok(())
    }
}

/// Where things are in [`abi_sel4::BootInfo`], in words.
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
    let index = index as u64;
    frame_words(page + index / 128 * 1024).set((index % 128) as usize, value);
}

fn put_range(page: u64, index: usize, range: (u64, u64)) {
    put(page, index, range.0);
    put(page, index + 1, range.1);
}

/// What the root task's file says.
struct Layout {
    start: u64,
    end: u64,
    entry: u64,
}

fn read_layout(file: &[u8]) -> Result<(Layout, ElfBytes<'_, LittleEndian>), Failure> {
    let damaged = Failure::NotAnExecutable("its file is damaged, or no ELF file");
    let parsed = ElfBytes::<LittleEndian>::minimal_parse(file).map_err(|_| damaged)?;
    if parsed.ehdr.e_machine != EM_RISCV || parsed.ehdr.class != elf::file::Class::ELF64 {
        return Err(Failure::NotAnExecutable("it was built for another machine"));
    }
    if parsed.ehdr.e_type != ET_EXEC {
        return Err(Failure::NotAnExecutable("it is not linked to a fixed address"));
    }
    let (mut start, mut end) = (u64::MAX, 0);
    for header in parsed.segments().ok_or(damaged)?.iter().filter(|header| header.p_type == PT_LOAD) {
        let last = header.p_vaddr.checked_add(header.p_memsz).ok_or(damaged)?;
        if last >= configuration::USER_TOP || header.p_filesz > header.p_memsz {
            return Err(Failure::NotAnExecutable("it does not fit into an address space"));
        }
        parsed.segment_data(&header).map_err(|_| damaged)?;
        if header.p_memsz > 0 {
            start = start.min(header.p_vaddr / PAGE * PAGE);
            end = end.max(last.next_multiple_of(PAGE));
        }
    }
    if !(start..end).contains(&parsed.ehdr.e_entry) {
        return Err(Failure::NotAnExecutable("it has no instructions where it starts"));
    }
    Ok((Layout { start, end, entry: parsed.ehdr.e_entry }, parsed))
}

/// Puts an ELF file's contents into memory; where it is then.
fn load(file: &[u8], free: &mut Free) -> Result<RootTask<'static>, Failure> {
    let (layout, parsed) = read_layout(file)?;
    let size = layout.end - layout.start;
    let start = free.take(size, PAGE)?;
    let segments = parsed.segments().into_iter().flatten().filter(|header| header.p_type == PT_LOAD);
    for header in segments {
        if let Ok(contents) = parsed.segment_data(&header)
            && !contents.is_empty()
        {
            copy_in(start + (header.p_vaddr - layout.start), contents);
        }
    }
    let offset = start.wrapping_sub(layout.start);
    Ok(RootTask::Loaded { start, end: start + size, offset, entry: layout.entry })
}

/// Addresses whose devices the kernel keeps for itself.
fn kept(description: &Description) -> Vec<(u64, u64), 8> {
    /// The core-local interruptor, or what has its registers: the firmware's.
    const CLINT: (u64, u64) = (0x200_0000, 0x201_0000);
    let mut kept = Vec::new();
    let mut keep = |start: u64, length: u64| {
        let _ = kept.push((start / PAGE * PAGE, (start + length).next_multiple_of(PAGE)));
    };
    keep(CLINT.0, CLINT.1 - CLINT.0);
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

/// Makes the first thread of this machine and everything it gets. `nodes` harts will run.
///
/// # Errors
/// [`Failure`]; the machine cannot be used then.
pub fn start(description: &Description, root: RootTask, device_tree: &[u8], nodes: usize) -> Result<(), Failure> {
    let memory = &description.memory;
    objects::permit(memory.first().map_or(0, |range| range.0), memory.last().map_or(0, |range| range.1));
    let kernel = KERNEL.lock();
    kernel.node_count.set(nodes);
    let ticks_in_second = description.timebase_frequency;
    kernel.tick_length.set((ticks_in_second * configuration::TICK_MILLISECONDS as u64 / 1000).max(1));
    let mut devices = Regions::new();
    let _ = devices.push((0, configuration::DEVICE_TOP));
    let mut devices = Free { regions: devices };
    for &(start, end) in description.not_devices.iter().chain(&kept(description)) {
        devices.remove(start, end);
    }
    build(&kernel, &description.free_memory, &devices.regions, root, device_tree)
}

/// As [`start`], for a kernel and memory that are given.
pub(crate) fn build(
    kernel: &Kernel,
    free_memory: &[(u64, u64)],
    devices: &[(u64, u64)],
    root: RootTask,
    device_tree: &[u8],
) -> Result<(), Failure> {
    let mut free = Free::new(free_memory);
    if let RootTask::Loaded { start, end, .. } = root {
        free.remove(start / PAGE * PAGE, end.next_multiple_of(PAGE));
    }
    let loaded = match root {
        RootTask::Loaded { .. } => root,
        RootTask::File([]) => return Err(Failure::NoRootTask),
        RootTask::File(file) => load(file, &mut free)?,
    };
    let RootTask::Loaded { start, end, offset, entry } = loaded else { return Err(Failure::NoRootTask) };

    // The largest first, so that alignment wastes nothing.
    let cnode_bits = configuration::ROOT_CNODE_SIZE_BITS as u8;
    let cnode_size = SLOT_SIZE << cnode_bits;
    let cnode = claim_slice(free.take(cnode_size, cnode_size)?, 1 << cnode_bits);
    let irq_slots = claim_slice(free.take(IRQ_SLOTS * SLOT_SIZE, PAGE)?, IRQ_SLOTS);
    let pool: Ref<AsidPool> = claim(free.take(PAGE, PAGE)?);
    let table: Ref<PageTable> = claim(free.take(PAGE, PAGE)?);
    let tcb: Ref<Tcb> = claim(free.take(THREAD_SIZE, THREAD_SIZE)?);
    let buffer = free.take(PAGE, PAGE)?;
    for node in &kernel.nodes {
        let proxy = claim(free.take(THREAD_SIZE, THREAD_SIZE)?);
        asynchronous::make_proxy(proxy, free.take(PAGE, PAGE)?);
        node.proxy.set(Some(proxy));
        if Machine::guest_files() > 0 {
            node.virtual_root.set(Some(VirtualRoot::claim(free.take(VirtualRoot::SIZE, VirtualRoot::SIZE)?)));
        }
    }
    let information = free.take(PAGE, PAGE)?;
    let extra_length = if device_tree.is_empty() { 0 } else { CHUNK_HEADER + device_tree.len() as u64 };
    let extra_size = extra_length.next_multiple_of(PAGE);
    let extra = if extra_size > 0 { free.take(extra_size, PAGE)? } else { 0 };

    let mut space = Space { slots: cnode, next: fixed::FIRST_FREE as u64 };
    let guard_bits = object::WORD_BITS as u8 - cnode_bits;
    let root_capability = Capability::CNode { slots: cnode, radix: cnode_bits, guard_bits, guard: 0 };
    let mapping = |address| Some(Mapping { asid: FIRST_ASID, address });
    let page = |base, address| Capability::Frame {
        base,
        size: FrameSize::Small,
        rights: VirtualRights::ReadWrite,
        device: false,
        mapping: mapping(address),
    };

    // The address space: image, buffer, boot information, extra boot information.
    vspace::copy_kernel_half(table);
    pool.roots[usize::from(FIRST_ASID)].set(Some(table));
    kernel.asid_pools[0].set(Some(pool));
    let image_start = start.wrapping_sub(offset);
    let image_end = image_start + (end - start);
    let buffer_address = image_end.next_multiple_of(PAGE);
    let information_address = buffer_address + PAGE;
    let extra_address = information_address + PAGE;
    let all_end = extra_address + extra_size;
    if all_end > configuration::USER_TOP {
        return Err(Failure::NotAnExecutable("it does not fit into an address space"));
    }

    let paging_start = space.next;
    for address in (image_start / PAGE * PAGE..all_end).step_by(PAGE as usize) {
        while vspace::boot_needs_table(table, address) {
            let below: Ref<PageTable> = claim(free.take(PAGE, PAGE)?);
            let at = vspace::boot_map_table(table, address, below);
            space.push(Capability::PageTable { table: below, mapping: mapping(at) })?;
        }
    }
    let paging_end = space.next;

    let extra_start = space.next;
    for step in (0..extra_size).step_by(PAGE as usize) {
        vspace::boot_map_page(table, extra_address + step, extra + step);
        space.push(page(extra + step, extra_address + step))?;
    }
    let extra_end = space.next;

    let image_first = space.next;
    for physical in (start..end).step_by(PAGE as usize) {
        let address = physical.wrapping_sub(offset);
        vspace::boot_map_page(table, address, physical);
        space.push(page(physical, address))?;
    }
    let image_last = space.next;
    vspace::boot_map_page(table, buffer_address, buffer);
    vspace::boot_map_page(table, information_address, information);

    let root_slot = space.put(fixed::CNODE as u64, root_capability);
    space.put(fixed::THREAD as u64, Capability::Thread { tcb });
    let table_slot = space.put(fixed::ADDRESS_SPACE as u64, Capability::PageTable { table, mapping: mapping(0) });
    space.put(fixed::IRQ_CONTROL as u64, Capability::IrqControl);
    space.put(fixed::ASID_CONTROL as u64, Capability::AsidControl);
    space.put(fixed::ASID_POOL as u64, Capability::AsidPool { pool, base: 0 });
    space.put(fixed::BOOT_INFO as u64, page(information, information_address));
    let buffer_slot = space.put(fixed::IPC_BUFFER as u64, page(buffer, buffer_address));
    space.put(fixed::DOMAIN as u64, Capability::Domain);

    // What is left is the root task's.
    let untyped_first = space.next;
    let mut count = 0;
    let regions = devices.iter().map(|&range| (range, true)).chain(free.regions.iter().map(|&range| (range, false)));
    for ((from, to), device) in regions {
        let mut at = from.next_multiple_of(1 << UNTYPED_BITS.start());
        while at < to {
            // The largest power of two that is aligned and fits.
            let aligned = if at == 0 { *UNTYPED_BITS.end() } else { at.trailing_zeros() };
            let bits = aligned.min((to - at).ilog2()).min(*UNTYPED_BITS.end());
            if bits < *UNTYPED_BITS.start() || count == configuration::MAXIMUM_BOOT_UNTYPEDS {
                break;
            }
            // It counts as used, so that the first objects find it cleared.
            let used = if device { 0 } else { 1 << bits };
            space.push(Capability::Untyped { base: at, bits: bits as u8, device, used })?;
            put(information, word::UNTYPED_LIST + 2 * count, at);
            put(information, word::UNTYPED_LIST + 2 * count + 1, u64::from(bits) | u64::from(device) << 8);
            count += 1;
            at += 1 << bits;
        }
    }
    let untyped_last = space.next;

    put(information, word::EXTRA_LENGTH, extra_length);
    put(information, word::NODE, 0);
    put(information, word::NODES, kernel.node_count.get() as u64);
    put(information, word::IPC_BUFFER, buffer_address);
    put_range(information, word::EMPTY, (space.next, 1 << cnode_bits));
    put_range(information, word::IMAGE_FRAMES, (image_first, image_last));
    put_range(information, word::IMAGE_PAGING, (paging_start, paging_end));
    put_range(information, word::EXTRA_PAGES, (extra_start, extra_end));
    put(information, word::CNODE_BITS, u64::from(cnode_bits));
    put(information, word::DOMAIN, 0);
    put_range(information, word::UNTYPED, (untyped_first, untyped_last));
    if extra_length > 0 {
        put(extra, 0, CHUNK_DEVICE_TREE);
        put(extra, 1, extra_length);
        copy_in(extra + CHUNK_HEADER, device_tree);
        debug_assert_eq!(extra_address, information_address + EXTRA_OFFSET as u64);
    }

    derivation::insert(root_capability, root_slot, tcb.own_slot(own::CSPACE));
    derivation::insert(table_slot.capability.get(), table_slot, tcb.own_slot(own::VSPACE));
    derivation::insert(buffer_slot.capability.get(), buffer_slot, tcb.own_slot(own::BUFFER));
    tcb.buffer_address.set(buffer_address);
    tcb.register::<10>().set(information_address);
    tcb.pc().set(entry);
    tcb.fault_pc.set(entry);
    tcb.priority.set(configuration::MAXIMUM_PRIORITY as u8);
    tcb.maximum_priority.set(configuration::MAXIMUM_PRIORITY as u8);
    tcb.time_slice.set(TICKS_IN_A_TURN);
    kernel.prepare_reply(tcb);
    tcb.set_state_word(ThreadState::Running);
    kernel.interrupts.set_slots(irq_slots);
    kernel.root.set(Some(root_slot));
    kernel.domains.set_period(0, Period { domain: 0, ticks: u64::MAX >> 8 });
    kernel.node().current.set(Some(tcb));
    Ok(())
}

/// The last thing before [`run`](crate::run), on every hart: makes ticks come.
pub fn join() {
    if Machine::hart() != 0 {
        crate::machine::prepare_guest_files();
    }
    let kernel = KERNEL.enter(Machine::hart());
    kernel.start_ticks();
    Machine::synchronise_instructions(hal_api::HartSet::EMPTY.with(Machine::hart()));
}
