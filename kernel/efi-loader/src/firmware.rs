//! The conversation with the firmware, and the step into the kernel.

use alloc::string::String;
use alloc::vec::Vec;
use core::alloc::{GlobalAlloc, Layout};
use core::arch::asm;
use core::ffi::c_void;
use core::ptr::{self, NonNull};
use core::slice;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use uefi_raw::protocol::loaded_image::LoadedImageProtocol;
use uefi_raw::table::boot::{AllocateType, BootServices, MemoryDescriptor, MemoryType, PAGE_SIZE};
use uefi_raw::table::system::SystemTable;
use uefi_raw::{Guid, Handle, Status, guid};

use crate::{Parts, Reason, kernel_size, prepare};

/// The table with the device tree (Devicetree on EFI: EBBR 2.1, 2.3).
const DEVICE_TREE: Guid = guid!("b1b621d5-f19c-41a5-830b-d9152c69aae0");

/// The protocol that knows the hart (RISC-V UEFI Protocol Specification 1.0).
const BOOT_PROTOCOL: Guid = guid!("ccd15fec-6f73-4eec-8395-3e69e4b940bf");

/// That protocol's interface.
#[repr(C)]
struct BootProtocol {
    _revision: u64,
    get_boot_hart: unsafe extern "efiapi" fn(this: *mut BootProtocol, hart: *mut usize) -> Status,
}

/// The kernel's address is a multiple of this.
const KERNEL_ALIGNMENT: usize = 2 << 20;

/// Room for entries that the map of memory gets by being asked for.
const MORE_ENTRIES: usize = 16;

/// The firmware's services, for the allocator.
static SERVICES: AtomicPtr<BootServices> = AtomicPtr::new(ptr::null_mut());

/// The firmware's table, for the last words.
static SYSTEM: AtomicPtr<SystemTable> = AtomicPtr::new(ptr::null_mut());

/// Memory from the firmware, which keeps it: the kernel takes the machine over.
struct Pool;

// SAFETY: the firmware's memory is at multiples of 8, nobody else gets it, and what it does not have is null. Larger
// alignments are refused.
unsafe impl GlobalAlloc for Pool {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let services = SERVICES.load(Relaxed);
        let mut memory = ptr::null_mut();
        if services.is_null() || layout.align() > 8 {
            return memory;
        }
        // SAFETY: the services last until they end, and nothing is allocated afterwards.
        let status = unsafe { ((*services).allocate_pool)(MemoryType::LOADER_DATA, layout.size(), &mut memory) };
        if status == Status::SUCCESS { memory } else { ptr::null_mut() }
    }

    unsafe fn dealloc(&self, memory: *mut u8, _: Layout) {
        // SAFETY: the memory is from `alloc`, and the services last as there.
        let _ = unsafe { ((*SERVICES.load(Relaxed)).free_pool)(memory) };
    }
}

#[global_allocator]
static POOL: Pool = Pool;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // Memory has run out while the tree was copied: everything else returns its reason.
    if let Some(system) = NonNull::new(SYSTEM.load(Relaxed)) {
        // SAFETY: the firmware's table lasts as long as its services, and nothing panics after their end.
        say(unsafe { system.as_ref() }, Reason::NoMemory);
    }
    loop {
        core::hint::spin_loop();
    }
}

/// The entry point: the firmware's name for this file, and its table.
///
/// # Safety
///
/// Called by the firmware alone.
#[unsafe(no_mangle)]
pub unsafe extern "efiapi" fn efi_main(image: Handle, system: *const SystemTable) -> Status {
    // SAFETY: the firmware's table lasts as long as this file runs.
    let system = unsafe { &*system };
    SERVICES.store(system.boot_services, Relaxed);
    SYSTEM.store(ptr::from_ref(system).cast_mut(), Relaxed);
    // SAFETY: as above.
    let services = unsafe { &*system.boot_services };
    match start(image, system, services) {
        Ok(never) => match never {},
        Err(reason) => {
            say(system, reason);
            Status::LOAD_ERROR
        }
    }
}

/// Prints a reason, without memory for it.
fn say(system: &SystemTable, reason: Reason) {
    let Some(console) = NonNull::new(system.stdout) else { return };
    let [first, second] = reason.text();
    for unit in ["COPS: ", first, second, ".\r\n"].iter().flat_map(|part| part.encode_utf16()) {
        // SAFETY: the firmware's console, which lasts, and a text that ends.
        let _ = unsafe { (console.as_ref().output_string)(console.as_ptr(), [unit, 0].as_ptr()) };
    }
}

fn start(image: Handle, system: &SystemTable, services: &BootServices) -> Result<core::convert::Infallible, Reason> {
    let loaded: NonNull<LoadedImageProtocol> = interface(services, image, &LoadedImageProtocol::GUID)?;
    // SAFETY: the firmware's description of this file, which lasts as long as it runs.
    let loaded = unsafe { loaded.as_ref() };
    // SAFETY: the file as the firmware has put it into memory. Nothing writes to it but this code, and its
    // variables are in no part that is read.
    let file = unsafe { slice::from_raw_parts(loaded.image_base.cast::<u8>(), loaded.image_size as usize) };
    let parts = Parts::find(file)?;
    let words = words(loaded, parts.words);

    let size = kernel_size(parts.kernel)?;
    let kernel = memory(services, size, KERNEL_ALIGNMENT)?;
    // SAFETY: memory of the kernel's size, of which its file is a part.
    unsafe { ptr::copy_nonoverlapping(parts.kernel.as_ptr(), kernel, parts.kernel.len()) };
    let archive = memory(services, parts.archive.len().max(1), PAGE_SIZE)?;
    // SAFETY: memory of the archive's size.
    unsafe { ptr::copy_nonoverlapping(parts.archive.as_ptr(), archive, parts.archive.len()) };
    let archive = archive as u64..archive as u64 + parts.archive.len() as u64;

    let prepared = prepare(device_tree(system)?, &words, archive)?;
    let hart = boot_hart(services).or(prepared.hart).ok_or(Reason::NoHart)?;
    let tree = memory(services, prepared.tree.len(), PAGE_SIZE)?;
    // SAFETY: memory of the tree's size.
    unsafe { ptr::copy_nonoverlapping(prepared.tree.as_ptr(), tree, prepared.tree.len()) };

    end_services(image, services)?;
    // SAFETY: the kernel lies where it wants to, the machine is its own now, and nothing here is used again.
    unsafe { enter(hart, tree, kernel) }
}

/// Returns the words that the firmware's user has given, or the file's.
fn words(loaded: &LoadedImageProtocol, own: &[u8]) -> String {
    let count = loaded.load_options_size as usize / 2;
    let options = loaded.load_options.cast::<u16>();
    let mut given = String::new();
    if !options.is_null() && options.is_aligned() {
        // SAFETY: the firmware's options have this size.
        let text = unsafe { slice::from_raw_parts(options, count) };
        given = char::decode_utf16(text.iter().copied()).take_while(|c| *c != Ok('\0')).flatten().collect();
    }
    let words = match given.trim() {
        "" => String::from_utf8_lossy(own).into_owned(),
        given => given.into(),
    };
    words.trim_end_matches('\0').trim().into()
}

/// Returns memory of the kernel's, of a size in bytes, at a multiple of an alignment.
fn memory(services: &BootServices, size: usize, alignment: usize) -> Result<*mut u8, Reason> {
    let slack = if alignment > PAGE_SIZE { alignment } else { 0 };
    let pages = size.checked_add(slack).ok_or(Reason::NoMemory)?.div_ceil(PAGE_SIZE);
    let mut address = 0;
    // SAFETY: a service of the firmware, with the types that it wants.
    let status =
        unsafe { (services.allocate_pages)(AllocateType::ANY_PAGES, MemoryType::LOADER_DATA, pages, &mut address) };
    match status {
        Status::SUCCESS => Ok((address as usize).next_multiple_of(alignment) as *mut u8),
        _ => Err(Reason::NoMemory),
    }
}

/// Finds an interface of a handle.
fn interface<T>(services: &BootServices, handle: Handle, name: &Guid) -> Result<NonNull<T>, Reason> {
    let mut found: *mut c_void = ptr::null_mut();
    // SAFETY: as in `memory`.
    let status = unsafe { (services.handle_protocol)(handle, name, &mut found) };
    match NonNull::new(found.cast()) {
        Some(found) if status == Status::SUCCESS => Ok(found),
        _ => Err(Reason::Firmware("no description of this file")),
    }
}

/// Finds the firmware's device tree.
fn device_tree(system: &SystemTable) -> Result<&[u8], Reason> {
    let (tables, count) = (system.configuration_table, system.number_of_configuration_table_entries);
    if tables.is_null() {
        return Err(Reason::NoDeviceTree);
    }
    // SAFETY: the firmware's tables, which it does not change while this code runs.
    let tables = unsafe { slice::from_raw_parts(tables, count) };
    let table = tables.iter().find(|table| table.vendor_guid == DEVICE_TREE).ok_or(Reason::NoDeviceTree)?;
    let tree = table.vendor_table.cast::<u8>();
    if tree.is_null() {
        return Err(Reason::NoDeviceTree);
    }
    // SAFETY: a device tree has at least its header, whose second word is the size of all of it.
    unsafe {
        let header = slice::from_raw_parts(tree, 8);
        let size = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        Ok(slice::from_raw_parts(tree, size as usize))
    }
}

/// Asks which hart this is; older firmware has it in the device tree alone.
fn boot_hart(services: &BootServices) -> Option<u64> {
    let mut found: *mut c_void = ptr::null_mut();
    // SAFETY: as in `memory`.
    let status = unsafe { (services.locate_protocol)(&BOOT_PROTOCOL, ptr::null(), &mut found) };
    let protocol = NonNull::new(found.cast::<BootProtocol>()).filter(|_| status == Status::SUCCESS)?;
    let mut hart = 0;
    // SAFETY: the protocol that was found, as its specification has it.
    let status = unsafe { ((*protocol.as_ptr()).get_boot_hart)(protocol.as_ptr(), &mut hart) };
    (status == Status::SUCCESS).then_some(hart as u64)
}

/// Ends the firmware's services. The firmware wants to be asked for its memory just before; once more, if that has
/// changed the memory.
fn end_services(image: Handle, services: &BootServices) -> Result<(), Reason> {
    let refused = Err(Reason::Firmware("its services did not end"));
    let (mut size, mut key, mut entry, mut version) = (0, 0, 0, 0);
    // SAFETY: as in `memory`; there is no room, so nothing is written but the numbers.
    let _ = unsafe { (services.get_memory_map)(&mut size, ptr::null_mut(), &mut key, &mut entry, &mut version) };
    let room = size + MORE_ENTRIES * entry.max(size_of::<MemoryDescriptor>());
    let mut map: Vec<u64> = alloc::vec![0; room.div_ceil(8)];
    for _ in 0..2 {
        size = room;
        // SAFETY: as in `memory`; the room is aligned, and of this size.
        let status = unsafe {
            (services.get_memory_map)(&mut size, map.as_mut_ptr().cast(), &mut key, &mut entry, &mut version)
        };
        if status != Status::SUCCESS {
            return refused;
        }
        // SAFETY: as in `memory`.
        if unsafe { (services.exit_boot_services)(image, key) } == Status::SUCCESS {
            // The pool has ended too.
            core::mem::forget(map);
            return Ok(());
        }
    }
    refused
}

/// Turns paging off and enters the kernel. Memory is at its physical addresses before and after.
///
/// # Safety
///
/// There is a kernel at its place, the firmware's services have ended, and nothing of this code is used again.
unsafe fn enter(hart: u64, tree: *mut u8, kernel: *mut u8) -> ! {
    // SAFETY: the caller's promise. The kernel was written as data, so the fence comes before it is fetched.
    unsafe {
        asm!(
            "csrw sie, zero",
            "csrw satp, zero",
            "sfence.vma",
            "fence.i",
            "jr {kernel}",
            kernel = in(reg) kernel,
            in("a0") hart,
            in("a1") tree,
            options(noreturn, nostack),
        )
    }
}
