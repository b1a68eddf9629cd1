//! Prints the boot information that the kernel has left for the initial thread.

use sel4::abi::boot::slot;
use sel4::{BootInformation, println};

/// Prints the boot information.
pub fn print(boot: &BootInformation) {
    let raw = boot.raw();
    let (core, cores) = boot.cores();
    println!("core {core} of {cores}, domain {}, labels as for a {:?}", raw.domain, sel4::raw::numbering());
    println!("initial CNode: 2^{} slots, empty from {} to {}", raw.cnode_size_bits, raw.empty.start, raw.empty.end);
    for (pointer, name) in slot::NAMES.iter().enumerate() {
        if let Some(tag) = sel4::raw::debug_identify(pointer as u64)
            && tag != sel4::abi::CapabilityTag::Null
        {
            println!("  slot {pointer:2}: {name}, {}", tag.name());
        }
    }
    println!("IPC buffer at {:#x}", raw.ipc_buffer);
    println!("image: {} pages, {} page tables", raw.user_image_frames.end - raw.user_image_frames.start, {
        raw.user_image_paging.end - raw.user_image_paging.start
    });
    for (id, content) in boot.chunks() {
        println!("chunk {id}: {} bytes", content.len());
    }
    let (mut ram, mut device) = (0_u64, 0_u64);
    for (untyped, description) in boot.untypeds() {
        let size = 1 << description.size_bits;
        let kind = if description.is_device == 0 { "RAM" } else { "device" };
        *(if description.is_device == 0 { &mut ram } else { &mut device }) += size;
        println!(
            "  slot {}: untyped at {:#012x}, 2^{} bytes of {kind}",
            untyped.pointer(),
            description.physical_address,
            description.size_bits
        );
    }
    println!("untyped: {} MiB of RAM, {} MiB of device memory", ram >> 20, device >> 20);
}
