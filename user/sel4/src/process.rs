//! Separate programs: an address space, a CSpace and a thread made of an ELF file.
//!
//! A program is started as the kernel starts the root task: with boot information, which lists its untyped memories,
//! its empty slots and its IPC buffer, so it is written with the same library and the same entry. Further grants are in
//! a chunk behind the boot information that only this library reads: its name, words whose meaning parent and child
//! agree on, and the shared memory that was mapped for it.
//!
//! **A program has only the authority that it was given**: its own thread, CNode and address space in the slots that a
//! root task has them in, and the capabilities granted by [`Process::grant`] and the like. The rights to make interrupt
//! handlers and ASID pools stay with the parent.
//!
//! **One untyped memory provides all objects**, the program's own memory included, so that [`Process::end`] is one
//! revocation, whatever objects the program has made meanwhile. Objects that it shares with other programs are not made
//! of its memory, and outlive it.
//!
//! **A program ends** when `main` returns, or panics: it makes a system call that does not exist, [`EXIT`], with its
//! status. The kernel reports that to the fault endpoint like any other fault, so that the parent learns of every end
//! in one way: [`Ending::of`].

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use abi_sel4::boot::EXTRA_OFFSET;
use abi_sel4::object::{PAGE_BITS, WORD_BITS};
use abi_sel4::{
    BootInfo, CNodeData, Error, ObjectType, Registers, Rights, SlotRegion, UntypedDescription, boot, message,
};
use program::{Image, ImageError, Protection};

use crate::allocator::{Allocator, Arena, Slots};
use crate::boot::Given;
use crate::capability::{CNode, Endpoint, Page, PageTable, Slot, Spaces, Thread, Untyped, initial};
use crate::fault::Fault;
use crate::mapping::{self, Window};
use crate::message::Received;
use crate::raw::{self, Failure, Result};
use crate::shared::SharedMemory;

/// Number of the system call by which a program ends; `a0` is its status. No kernel has it.
pub const EXIT: u64 = 1;

/// Status of a program that panicked.
pub const PANICKED: u64 = 101;

/// Identifier of this library's chunk behind the boot information.
pub const CHUNK_PROGRAM: u64 = 0x7367_6f72_7073_706f;

/// Address of a program's boot information and IPC buffer: behind all linked segments.
const INFORMATION: u64 = 0x0f_0000_0000;
/// Address of the first shared memory; an unmapped page follows each.
const SHARED: u64 = 0x0f_8000_0000;

const PAGE: u64 = 1 << PAGE_BITS;

/// A description of a program to start.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// Name of the program, printed when it panics.
    pub name: &'a str,
    /// The ELF file.
    pub file: &'a [u8],
    /// Priority of the program, which it cannot raise.
    pub priority: u64,
    /// Core on which it runs, where there are several.
    pub core: u64,
    /// Slots of its CNode, as a power of two.
    pub slot_bits: usize,
    /// Bytes of all memory that it is made of, as a power of two.
    pub memory_bits: usize,
    /// Bytes of untyped memory for its own use, as a power of two; half of the other or less.
    pub own_bits: usize,
}

impl<'a> Program<'a> {
    /// Describes a small program: 1,024 slots, 8 MiB, of which 4 MiB are for its own use.
    pub const fn new(name: &'a str, file: &'a [u8], priority: u64) -> Program<'a> {
        Program { name, file, priority, core: 0, slot_bits: 10, memory_bits: 23, own_bits: 22 }
    }
}

/// The reason why a program cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The file is not a runnable image.
    Image(ImageError),
    /// Slots or memory are too few, or the kernel's error.
    Failed(Failure),
}

impl From<Failure> for LoadError {
    fn from(failure: Failure) -> LoadError {
        LoadError::Failed(failure)
    }
}

impl core::fmt::Display for LoadError {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            LoadError::Image(error) => error.fmt(formatter),
            LoadError::Failed(failure) => failure.fmt(formatter),
        }
    }
}

/// A program that was loaded.
#[derive(Debug)]
pub struct Process {
    name: String,
    thread: Thread,
    space: PageTable,
    cnode: CNode,
    slot_bits: usize,
    /// Memory that it is made of, and slots of this program with the capabilities to its parts.
    memory: Arena,
    own: Box<Allocator>,
    first_slot: u64,
    slots: u64,
    /// Next free slot of its CNode.
    next: u64,
    entry: u64,
    information: Page,
    extra: Page,
    /// Address in this program at which its pages are mapped temporarily.
    scratch: u64,
    shared_end: u64,
    /// Slots of this program with the capabilities by which shared pages are mapped there.
    shares: Vec<u64>,
    untyped: (SlotRegion, Vec<UntypedDescription>),
    given: Given,
}

/// Slots of this program that a process may need beside one for each of its pages.
const OBJECTS: u64 = 64;

impl Process {
    /// Makes a program, which does not run yet. Faults come to `supervisor` with `badge`.
    ///
    /// # Errors
    ///
    /// [`LoadError`]; its parts made until then are deleted.
    pub fn load(
        allocator: &mut Allocator,
        window: &mut Window,
        program: &Program<'_>,
        supervisor: Endpoint,
        badge: u64,
    ) -> core::result::Result<Process, LoadError> {
        let image = Image::parse(program.file).map_err(LoadError::Image)?;
        let pages: u64 =
            image.segments().iter().map(|segment| segment.pages()).map(|range| (range.end - range.start) / PAGE).sum();
        let scratch = window.addresses(PAGE_BITS, 1)?;
        let mut memory = allocator.memory(program.memory_bits)?;
        let slots = pages + OBJECTS;
        let first_slot = allocator.slots(slots)?;
        let region = SlotRegion { start: first_slot, end: first_slot + slots };
        let own = Box::new(Allocator::over(Slots::new(region), memory));
        let made =
            Process::make(allocator, own, program, &image, scratch, supervisor, badge, (memory, first_slot, slots));
        if made.is_err() && memory.revoke().is_ok() {
            allocator.give_back_slots(first_slot, slots);
            allocator.give_back(memory);
        }
        made
    }

    #[expect(clippy::too_many_arguments, reason = "the second half of `load`, so that `load` can undo a failure")]
    fn make(
        allocator: &mut Allocator,
        mut own: Box<Allocator>,
        program: &Program<'_>,
        image: &Image,
        scratch: u64,
        supervisor: Endpoint,
        badge: u64,
        (memory, first_slot, slots): (Arena, u64, u64),
    ) -> core::result::Result<Process, LoadError> {
        // The largest first: no memory is lost to alignment.
        let untyped = own.make(ObjectType::Untyped, program.own_bits, 1)?;
        let space = PageTable::from_pointer(own.object(ObjectType::PageTable)?);
        initial::ASID_POOL.assign(space)?;
        let cnode = CNode::from_pointer(own.make(ObjectType::CapTable, program.slot_bits, 1)?);
        let thread = Thread::from_pointer(own.object(ObjectType::Tcb)?);
        let buffer = Page::from_pointer(own.object(ObjectType::Page)?);
        let information = Page::from_pointer(own.object(ObjectType::Page)?);
        let extra = Page::from_pointer(own.object(ObjectType::Page)?);
        mapping::map(&mut own, space, buffer, INFORMATION, Rights::READ_WRITE, message::EXECUTE_NEVER)?;
        let mut process = Process {
            name: program.name.into(),
            thread,
            space,
            cnode,
            slot_bits: program.slot_bits,
            memory,
            own,
            first_slot,
            slots,
            next: boot::slot::FIRST_FREE as u64,
            entry: image.entry(),
            information,
            extra,
            scratch,
            shared_end: SHARED,
            shares: Vec::new(),
            untyped: (SlotRegion::default(), Vec::new()),
            given: Given::default(),
        };
        process.load_segments(allocator, program.file, image)?;

        // Same slots as a root task's. The guard makes all bits of a pointer count.
        let guard = CNodeData::new(0, WORD_BITS - program.slot_bits);
        let place = |slot: usize| cnode.slot(slot as u64, program.slot_bits);
        place(boot::slot::THREAD).copy_from(Slot::own(thread.pointer()), Rights::ALL)?;
        place(boot::slot::CNODE).mint_from(Slot::own(cnode.pointer()), Rights::ALL, guard.0)?;
        place(boot::slot::ADDRESS_SPACE).copy_from(Slot::own(space.pointer()), Rights::ALL)?;
        place(boot::slot::IPC_BUFFER).copy_from(Slot::own(buffer.pointer()), Rights::ALL)?;
        let fault_endpoint = process.grant(supervisor.pointer(), Rights::WRITE.union(Rights::GRANT_REPLY), badge)?;
        let spaces = Spaces { fault_endpoint, cspace: cnode, cspace_data: guard, address_space: space };
        thread.configure(spaces, INFORMATION, buffer)?;
        thread.set_scheduling(initial::THREAD, program.priority, program.priority)?;
        if raw::numbering() == abi_sel4::Numbering::Multiprocessor {
            thread.set_affinity(program.core)?;
        }
        process.grant_untyped(
            Untyped::from_pointer(untyped),
            UntypedDescription { size_bits: program.own_bits as u8, ..UntypedDescription::default() },
        )?;
        Ok(process)
    }

    /// Maps the segments of the program's file, with their content.
    fn load_segments(&mut self, allocator: &mut Allocator, file: &[u8], image: &Image) -> Result<()> {
        for segment in image.segments() {
            let (rights, attributes) = match segment.protection {
                Protection::Read => (Rights::READ, message::EXECUTE_NEVER),
                Protection::ReadWrite => (Rights::READ_WRITE, message::EXECUTE_NEVER),
                Protection::ReadExecute => (Rights::READ, 0),
            };
            let content = file.get(segment.file.start as usize..segment.file.end as usize).unwrap_or_default();
            let mut address = segment.pages().start;
            while address < segment.pages().end {
                let page = Page::from_pointer(self.own.object(ObjectType::Page)?);
                // The part of the content in this page: from `skip` on, at `at` in the page.
                let at = segment.memory.start.saturating_sub(address);
                let skip = (address + at - segment.memory.start) as usize;
                let part = content.get(skip..).unwrap_or_default();
                let part = &part[..part.len().min((PAGE - at) as usize)];
                if !part.is_empty() {
                    self.fill(allocator, page, at as usize, part)?;
                }
                mapping::map(&mut self.own, self.space, page, address, rights, attributes)?;
                address += PAGE;
            }
        }
        Ok(())
    }

    /// Writes into a page that is not mapped anywhere.
    fn fill(&mut self, allocator: &mut Allocator, page: Page, at: usize, content: &[u8]) -> Result<()> {
        mapping::map(
            allocator,
            initial::ADDRESS_SPACE,
            page,
            self.scratch,
            Rights::READ_WRITE,
            message::EXECUTE_NEVER,
        )?;
        // SAFETY: mapped just now, and no copy of this value is kept after the page is unmapped below.
        let memory = unsafe { SharedMemory::new(self.scratch, PAGE as usize) };
        let fits = memory.write(at, content);
        page.unmap()?;
        if fits { Ok(()) } else { Err(Failure::new(Error::RangeError, [0, PAGE])) }
    }

    /// Returns the program's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the program's thread.
    pub fn thread(&self) -> Thread {
        self.thread
    }

    fn next_slot(&mut self) -> Result<Slot> {
        if self.next >> self.slot_bits != 0 {
            return Err(Failure::new(Error::RangeError, [0, 1 << self.slot_bits]));
        }
        let slot = self.cnode.slot(self.next, self.slot_bits);
        self.next += 1;
        Ok(slot)
    }

    /// Gives the program a copy of a capability of this program, with these rights and this badge; returns its pointer
    /// there.
    ///
    /// # Errors
    ///
    /// The program has no slot left, or the kernel's error.
    pub fn grant(&mut self, capability: u64, rights: Rights, badge: u64) -> Result<u64> {
        let slot = self.next_slot()?;
        slot.mint_from(Slot::own(capability), rights, badge)?;
        Ok(slot.index)
    }

    /// Gives the program a copy of a capability of this program with the same badge and these rights; returns its
    /// pointer there. Revoking the one here takes the copy back.
    ///
    /// # Errors
    ///
    /// As [`grant`](Process::grant).
    pub fn grant_copy(&mut self, capability: u64, rights: Rights) -> Result<u64> {
        let slot = self.next_slot()?;
        slot.copy_from(Slot::own(capability), rights)?;
        Ok(slot.index)
    }

    /// Gives the program its untyped memory.
    fn grant_untyped(&mut self, untyped: Untyped, description: UntypedDescription) -> Result<()> {
        let slot = self.next_slot()?;
        // Moved, because an untyped memory with a copy cannot be retyped.
        slot.move_from(Slot::own(untyped.pointer()))?;
        self.untyped.0 = SlotRegion { start: slot.index, end: slot.index + 1 };
        self.untyped.1.push(description);
        Ok(())
    }

    /// Makes the notification that the program waits on, and returns this program's capability to it, with all rights.
    ///
    /// # Errors
    ///
    /// Slots or memory are too few.
    pub fn notification(&mut self, allocator: &mut Allocator) -> Result<u64> {
        // Not made of the program's memory: other programs signal it, also after the end.
        let notification = allocator.object(ObjectType::Notification)?;
        self.given.notification = self.grant(notification, Rights::READ_WRITE, 0)?;
        Ok(notification)
    }

    /// Maps another program's pages for it, as the next of its [regions](crate::BootInformation::regions).
    ///
    /// # Errors
    ///
    /// Slots or memory are too few, or the kernel's error.
    pub fn share(&mut self, allocator: &mut Allocator, pages: &[Page]) -> Result<()> {
        let (address, length) = self.map_shared(allocator, pages)?;
        self.given.regions.push([address, length]);
        Ok(())
    }

    /// Makes pages the memory of the next end of a connection.
    pub(crate) fn add_end(
        &mut self,
        allocator: &mut Allocator,
        pages: &[Page],
        capacity: u64,
        bell: u64,
    ) -> Result<()> {
        let (address, length) = self.map_shared(allocator, pages)?;
        self.given.ends.push([address, length, capacity, bell]);
        Ok(())
    }

    /// Maps pages one after the other; returns address and length.
    fn map_shared(&mut self, allocator: &mut Allocator, pages: &[Page]) -> Result<(u64, u64)> {
        let address = self.shared_end;
        let length = pages.len() as u64 * PAGE;
        for (at, page) in (address..).step_by(PAGE as usize).zip(pages) {
            // A mapping belongs to a capability: this copy is for the process, and stays with this program.
            let copy = allocator.slot()?;
            Slot::own(copy).copy_from(Slot::own(page.pointer()), Rights::ALL)?;
            self.shares.push(copy);
            let page = Page::from_pointer(copy);
            mapping::map(&mut self.own, self.space, page, at, Rights::READ_WRITE, message::EXECUTE_NEVER)?;
        }
        self.shared_end = address + length + PAGE;
        Ok((address, length))
    }

    /// Adds a word to the program's arguments.
    pub fn argument(&mut self, word: u64) {
        self.given.arguments.push(word);
    }

    /// Starts the program.
    ///
    /// # Errors
    ///
    /// Arguments and regions do not fit into a page; or the kernel's error.
    pub fn start(&mut self, allocator: &mut Allocator) -> Result<()> {
        let chunk = crate::boot::program_chunk(&self.name, &self.given);
        let mut list = [UntypedDescription::default(); abi_sel4::configuration::MAXIMUM_BOOT_UNTYPEDS];
        list[..self.untyped.1.len()].copy_from_slice(&self.untyped.1);
        let numbers = BootInfo {
            extra_length: chunk.len() as u64,
            node: 0,
            nodes: crate::boot::cores(),
            io_page_table_levels: 0,
            ipc_buffer: INFORMATION,
            empty: SlotRegion { start: self.next, end: 1 << self.slot_bits },
            shared_frames: SlotRegion::default(),
            user_image_frames: SlotRegion::default(),
            user_image_paging: SlotRegion::default(),
            io_space: SlotRegion::default(),
            extra_pages: SlotRegion::default(),
            cnode_size_bits: self.slot_bits as u64,
            domain: 0,
            untyped: self.untyped.0,
            untyped_list: list,
        };
        const { assert!(size_of::<BootInfo>() <= EXTRA_OFFSET && EXTRA_OFFSET == PAGE as usize) };
        // SAFETY: plain numbers without gaps (their layout is asserted in `abi-sel4`), read as bytes.
        let bytes = unsafe { core::slice::from_raw_parts((&raw const numbers).cast::<u8>(), size_of::<BootInfo>()) };
        let (information, extra) = (self.information, self.extra);
        self.fill(allocator, information, 0, bytes)?;
        self.fill(allocator, extra, 0, &chunk)?;
        let address = INFORMATION + 2 * PAGE;
        for (number, page) in [information, extra].into_iter().enumerate() {
            let at = address + number as u64 * PAGE;
            mapping::map(&mut self.own, self.space, page, at, Rights::READ, message::EXECUTE_NEVER)?;
        }
        let registers = Registers { pc: self.entry, a0: address, ..Registers::default() };
        self.thread.write_registers_and_resume(&registers)
    }

    /// Ends the program: its thread, its memory and all objects that it has made are deleted, and the memory is given
    /// back. Other programs' capabilities to them become null capabilities.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn end(mut self, allocator: &mut Allocator) -> Result<()> {
        self.thread.suspend()?;
        for slot in self.shares {
            Slot::own(slot).delete()?;
            allocator.give_back_slots(slot, 1);
        }
        for slot in self.first_slot..self.first_slot + self.slots {
            Slot::own(slot).delete()?;
        }
        self.memory.revoke()?;
        allocator.give_back_slots(self.first_slot, self.slots);
        allocator.give_back(self.memory);
        Ok(())
    }
}

/// The way in which a program has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Ended by itself, with a status; 0 is success.
    Exited(u64),
    /// Faulted.
    Faulted(Fault),
}

impl Ending {
    /// Decodes a message to the fault endpoint; `None` if it is no fault.
    pub fn of(received: &Received) -> Option<Ending> {
        match Fault::from_message(received)? {
            Fault::UnknownSystemCall { number: EXIT, arguments: [status, ..], .. } => Some(Ending::Exited(status)),
            fault => Some(Ending::Faulted(fault)),
        }
    }
}
