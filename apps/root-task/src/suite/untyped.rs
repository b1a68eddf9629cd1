//! Untyped memory: the objects that can be made of it, and the refused requests.

use sel4::abi::object::{MAXIMUM_UNTYPED_BITS, MINIMUM_UNTYPED_BITS};
use sel4::abi::{CapabilityTag, Invocation, configuration::RETYPE_LIMIT};
use sel4::capability::{CNode, Page, Slot, Untyped, initial};
use sel4::raw::invoke;
use sel4::{ObjectType, Rights};

use crate::harness::{Bench, Outcome};
use crate::{check, equal, memory, refused};

/// The initial CNode itself as destination.
const ROOT: Slot = Slot { root: initial::CNODE, index: 0, depth: 0 };

pub fn every_type_can_be_made(bench: &mut Bench<'_>) -> Outcome {
    for (object, size_bits, tag) in [
        (ObjectType::MegaPage, 0, CapabilityTag::Frame),
        (ObjectType::Untyped, MINIMUM_UNTYPED_BITS, CapabilityTag::Untyped),
        (ObjectType::Tcb, 0, CapabilityTag::Thread),
        (ObjectType::Endpoint, 0, CapabilityTag::Endpoint),
        (ObjectType::Notification, 0, CapabilityTag::Notification),
        (ObjectType::CapTable, 1, CapabilityTag::CNode),
        (ObjectType::Page, 0, CapabilityTag::Frame),
        (ObjectType::PageTable, 0, CapabilityTag::PageTable),
    ] {
        let first = bench.allocator.make(object, size_bits, 2)?;
        equal!(sel4::raw::debug_identify(first), Some(tag));
        equal!(sel4::raw::debug_identify(first + 1), Some(tag));
    }
    Ok(())
}

pub fn unknown_types_and_sizes_are_refused(bench: &mut Bench<'_>) -> Outcome {
    let memory = bench.allocator.memory(14)?.untyped();
    let slot = bench.slot()?.index;
    let retype = |kind: u64, size: u64| {
        invoke(memory.pointer(), Invocation::UntypedRetype, &[kind, size, 0, 0, slot, 1], &[initial::CNODE.pointer()])
    };
    equal!(refused!(retype(9, 12), InvalidArgument).details[0], 0);
    equal!(refused!(retype(u64::MAX, 12), InvalidArgument).details[0], 0);
    equal!(refused!(retype(4, 0), InvalidArgument).details[0], 1);
    equal!(refused!(retype(0, MINIMUM_UNTYPED_BITS as u64 - 1), InvalidArgument).details[0], 1);
    refused!(retype(0, MAXIMUM_UNTYPED_BITS as u64 + 1), RangeError);
    refused!(retype(0, 64), RangeError);
    refused!(retype(0, u64::MAX), RangeError);
    refused!(retype(4, 64), RangeError);
    refused!(retype(4, 60), RangeError);
    equal!(sel4::raw::debug_identify(slot), Some(CapabilityTag::Null));
    Ok(())
}

pub fn numbers_are_limited(bench: &mut Bench<'_>) -> Outcome {
    let memory = bench.allocator.memory(14)?.untyped();
    let first = bench.allocator.slots(RETYPE_LIMIT as u64)?;
    let failure = refused!(memory.retype(ObjectType::Endpoint, 0, ROOT, first, 0), RangeError);
    equal!((failure.details[0], failure.details[1]), (1, RETYPE_LIMIT as u64));
    refused!(memory.retype(ObjectType::Endpoint, 0, ROOT, first, RETYPE_LIMIT as u64 + 1), RangeError);
    refused!(memory.retype(ObjectType::Endpoint, 0, ROOT, first, u64::MAX), RangeError);
    memory.retype(ObjectType::Endpoint, 0, ROOT, first, RETYPE_LIMIT as u64)?;
    equal!(sel4::raw::debug_identify(first + RETYPE_LIMIT as u64 - 1), Some(CapabilityTag::Endpoint));
    Ok(())
}

pub fn destinations_are_checked(bench: &mut Bench<'_>) -> Outcome {
    let memory = bench.allocator.memory(14)?.untyped();
    let endpoint = bench.endpoint()?;
    let full = Slot::own(endpoint.pointer());
    let empty = bench.slot()?;
    let slots = 1_u64 << bench.boot.raw().cnode_size_bits;
    // The window of slots does not lie in the CNode, or only a part of it.
    let failure = refused!(memory.retype(ObjectType::Endpoint, 0, ROOT, slots, 1), RangeError);
    equal!((failure.details[0], failure.details[1]), (0, slots - 1));
    refused!(memory.retype(ObjectType::Endpoint, 0, ROOT, u64::MAX, 2), RangeError);
    refused!(memory.retype(ObjectType::Endpoint, 0, ROOT, slots - 1, 2), RangeError);
    refused!(memory.retype(ObjectType::Endpoint, 0, ROOT, full.index, 1), DeleteFirst);
    // The destination is named by a path that leads to no CNode.
    refused!(memory.retype(ObjectType::Endpoint, 0, full, 0, 1), FailedLookup);
    refused!(memory.retype(ObjectType::Endpoint, 0, empty, 0, 1), FailedLookup);
    let no_root = Slot { root: CNode::from_pointer(endpoint.pointer()), index: 0, depth: 0 };
    refused!(memory.retype(ObjectType::Endpoint, 0, no_root, 0, 1), FailedLookup);
    Ok(())
}

pub fn a_cnode_on_the_way_can_be_the_destination(bench: &mut Bench<'_>) -> Outcome {
    let table = CNode::from_pointer(bench.allocator.make(ObjectType::CapTable, 4, 1)?);
    let memory = bench.allocator.memory(12)?.untyped();
    memory.retype(ObjectType::Notification, 0, Slot::own(table.pointer()), 14, 2)?;
    refused!(memory.retype(ObjectType::Notification, 0, Slot::own(table.pointer()), 15, 1), DeleteFirst);
    refused!(memory.retype(ObjectType::Notification, 0, Slot::own(table.pointer()), 15, 2), RangeError);
    let seen = bench.slot()?;
    seen.move_from(table.slot(14, 4))?;
    equal!(sel4::raw::debug_identify(seen.index), Some(CapabilityTag::Notification));
    Ok(())
}

pub fn memory_runs_out_exactly(bench: &mut Bench<'_>) -> Outcome {
    let mut arena = bench.allocator.memory(12)?;
    let first = bench.allocator.slots(256)?;
    let memory = arena.untyped();
    memory.retype(ObjectType::Endpoint, 0, ROOT, first, 1)?;
    // The next page would begin at the end of the memory.
    let failure = refused!(memory.retype(ObjectType::Page, 0, ROOT, first + 1, 1), NotEnoughMemory);
    equal!(failure.details[0], 4096 - 16);
    memory.retype(ObjectType::Endpoint, 0, ROOT, first + 1, 254)?;
    refused!(memory.retype(ObjectType::Endpoint, 0, ROOT, first + 255, 2), NotEnoughMemory);
    memory.retype(ObjectType::Endpoint, 0, ROOT, first + 255, 1)?;
    refused!(memory.retype(ObjectType::Untyped, 4, ROOT, first, 1), DeleteFirst);
    // Deleting the objects one by one frees the memory as well: the watermark falls when no child is left.
    for slot in first..first + 256 {
        Slot::own(slot).delete()?;
    }
    memory.retype(ObjectType::Page, 0, ROOT, first, 1)?;
    arena.revoke()?;
    equal!(sel4::raw::debug_identify(first), Some(CapabilityTag::Null));
    memory.retype(ObjectType::Tcb, 0, ROOT, first, 2)?;
    Ok(())
}

pub fn memory_is_cleared_before_it_is_used_again(bench: &mut Bench<'_>) -> Outcome {
    let mut arena = bench.allocator.memory(16)?;
    let slot = bench.slot()?.index;
    let address = 0x10_0200_0000;
    for round in 0..2 {
        arena.make(ObjectType::Page, 0, slot, 1)?;
        let page = Page::from_pointer(slot);
        sel4::mapping::map(&mut bench.allocator, initial::ADDRESS_SPACE, page, address, Rights::READ_WRITE, 0)?;
        for word in (0..4096).step_by(8) {
            equal!((round, word, memory::read(address + word)), (round, word, 0));
            memory::write(address + word, u64::MAX);
        }
        arena.revoke()?;
    }
    Ok(())
}

pub fn device_memory_becomes_pages_only(bench: &mut Bench<'_>) -> Outcome {
    let device =
        bench.boot.untypeds().find(|(_, description)| description.is_device == 1 && description.size_bits >= 13);
    let Some((device, _)) = device else { return Err(crate::harness::Wrong::new(format_args!("there is none"))) };
    let slot = bench.slot()?.index;
    for object in [ObjectType::Tcb, ObjectType::Endpoint, ObjectType::Notification, ObjectType::PageTable] {
        equal!(refused!(device.retype(object, 0, ROOT, slot, 1), InvalidArgument).details[0], 1);
    }
    refused!(device.retype(ObjectType::CapTable, 4, ROOT, slot, 1), InvalidArgument);
    device.retype(ObjectType::Page, 0, ROOT, slot, 1)?;
    // It cannot be an IPC buffer: the kernel would write to the device.
    let thread = bench.thread()?;
    refused!(thread.set_ipc_buffer(0x1000, Page::from_pointer(slot)), IllegalOperation);
    Ok(())
}

pub fn other_capabilities_are_no_memory(bench: &mut Bench<'_>) -> Outcome {
    let slot = bench.slot()?;
    for wrong in [initial::THREAD.pointer(), initial::CNODE.pointer(), initial::ADDRESS_SPACE.pointer()] {
        refused!(Untyped::from_pointer(wrong).retype(ObjectType::Endpoint, 0, ROOT, slot.index, 1), IllegalOperation);
    }
    equal!(
        refused!(
            Untyped::from_pointer(slot.index).retype(ObjectType::Endpoint, 0, ROOT, slot.index, 1),
            InvalidCapability
        )
        .details[0],
        0
    );
    Ok(())
}

pub fn revoking_reaches_grandchildren(bench: &mut Bench<'_>) -> Outcome {
    let mut arena = bench.allocator.memory(16)?;
    let (child, grandchild) = (bench.slot()?.index, bench.slot()?.index);
    arena.make(ObjectType::Untyped, 14, child, 1)?;
    Untyped::from_pointer(child).retype(ObjectType::CapTable, 4, ROOT, grandchild, 1)?;
    let table = CNode::from_pointer(grandchild);
    table.slot(3, 4).copy_from(Slot::own(grandchild), Rights::ALL)?;
    let copy = bench.slot()?;
    copy.copy_from(Slot::own(grandchild), Rights::ALL)?;
    arena.revoke()?;
    for slot in [child, grandchild, copy.index] {
        equal!(sel4::raw::debug_identify(slot), Some(CapabilityTag::Null));
    }
    check!(arena.left() == 1 << 16);
    Ok(())
}
