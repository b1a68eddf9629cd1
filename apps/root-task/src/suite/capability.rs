//! CNodes: copying, moving and deleting capabilities, and the resolution of capability pointers.

use sel4::abi::{CapabilityTag, LookupFailureKind};
use sel4::capability::{CNode, Endpoint, Notification, Slot, Untyped, initial};
use sel4::raw::debug_identify;
use sel4::{CNodeData, Failure, ObjectType, Rights};

use crate::harness::{Bench, Outcome, PRIORITY, let_run};
use crate::{check, equal, refused};

const EMPTY: Option<CapabilityTag> = Some(CapabilityTag::Null);
const ENDPOINT: Option<CapabilityTag> = Some(CapabilityTag::Endpoint);

/// Makes a CNode of 2^`bits` slots.
fn table(bench: &mut Bench<'_>, bits: usize) -> Result<CNode, Failure> {
    bench.allocator.make(ObjectType::CapTable, bits, 1).map(CNode::from_pointer)
}

pub fn copies_moves_and_deletions(bench: &mut Bench<'_>) -> Outcome {
    let source = Slot::own(bench.endpoint()?.pointer());
    let (copy, moved) = (bench.slot()?, bench.slot()?);
    copy.copy_from(source, Rights::ALL)?;
    equal!((debug_identify(source.index), debug_identify(copy.index)), (ENDPOINT, ENDPOINT));
    moved.move_from(copy)?;
    equal!((debug_identify(copy.index), debug_identify(moved.index)), (EMPTY, ENDPOINT));
    moved.delete()?;
    moved.delete()?;
    equal!((debug_identify(source.index), debug_identify(moved.index)), (ENDPOINT, EMPTY));
    Ok(())
}

pub fn sources_and_destinations_are_checked(bench: &mut Bench<'_>) -> Outcome {
    let source = Slot::own(bench.endpoint()?.pointer());
    let (empty, other) = (bench.slot()?, bench.slot()?);
    // A full destination.
    refused!(source.copy_from(source, Rights::ALL), DeleteFirst);
    refused!(source.mint_from(source, Rights::ALL, 1), DeleteFirst);
    refused!(source.move_from(source), DeleteFirst);
    refused!(source.mutate_from(source, 1), DeleteFirst);
    // An empty source.
    for failure in [
        refused!(other.copy_from(empty, Rights::ALL), FailedLookup),
        refused!(other.mint_from(empty, Rights::ALL, 1), FailedLookup),
        refused!(other.move_from(empty), FailedLookup),
        refused!(other.mutate_from(empty, 1), FailedLookup),
    ] {
        equal!((failure.details[0], failure.lookup()), (1, Some(LookupFailureKind::MissingCapability)));
    }
    // Depths.
    for depth in [0, 65, 200] {
        let wrong = Slot { depth, ..empty };
        let failure = refused!(wrong.copy_from(source, Rights::ALL), RangeError);
        equal!((failure.details[0], failure.details[1]), (1, 64));
        refused!(wrong.move_from(source), RangeError);
        refused!(wrong.delete(), RangeError);
        refused!(wrong.revoke(), RangeError);
        refused!(wrong.cancel_badged_sends(), RangeError);
        refused!(wrong.save_caller(), RangeError);
        refused!(wrong.mint_from(source, Rights::ALL, 1), RangeError);
        refused!(wrong.mutate_from(source, 1), RangeError);
        refused!(empty.copy_from(Slot { depth, ..source }, Rights::ALL), RangeError);
        refused!(empty.rotate_from(0, Slot { depth, ..source }, 0, other), RangeError);
    }
    // Roots that are no CNodes.
    let no_root = Slot { root: CNode::from_pointer(initial::THREAD.pointer()), ..empty };
    refused!(no_root.delete(), IllegalOperation);
    let failure = refused!(
        empty.copy_from(Slot { root: CNode::from_pointer(source.index), ..source }, Rights::ALL),
        FailedLookup
    );
    equal!((failure.details[0], failure.lookup()), (1, Some(LookupFailureKind::InvalidRoot)));
    let failure =
        refused!(empty.copy_from(Slot { root: CNode::from_pointer(other.index), ..source }, Rights::ALL), FailedLookup);
    equal!((failure.details[0], failure.lookup()), (1, Some(LookupFailureKind::InvalidRoot)));
    equal!(
        refused!(Slot { root: CNode::from_pointer(other.index), ..empty }.delete(), InvalidCapability).details[0],
        0
    );
    Ok(())
}

pub fn badges_are_given_once(bench: &mut Bench<'_>) -> Outcome {
    let source = Slot::own(bench.endpoint()?.pointer());
    let (first, second) = (bench.slot()?, bench.slot()?);
    first.mint_from(source, Rights::ALL, 7)?;
    refused!(second.mint_from(first, Rights::ALL, 8), IllegalOperation);
    refused!(second.mutate_from(first, 8), IllegalOperation);
    second.copy_from(first, Rights::ALL)?;
    second.delete()?;
    // Only copies get a badge, not moved capabilities.
    refused!(second.mutate_from(source, 9), IllegalOperation);
    refused!(second.mutate_from(source, 0), IllegalOperation);
    second.mint_from(source, Rights::ALL, 9)?;
    Ok(())
}

pub fn guards_must_fit(bench: &mut Bench<'_>) -> Outcome {
    let node = table(bench, 4)?;
    let slot = bench.slot()?;
    // 61 bits of guard and 4 of index are more than a pointer has.
    refused!(slot.mint_from(Slot::own(node.pointer()), Rights::ALL, CNodeData::new(0, 61).0), IllegalOperation);
    slot.mint_from(Slot::own(node.pointer()), Rights::ALL, CNodeData::new(0, 60).0)?;
    let inside = CNode::from_pointer(slot.index).slot(2, 64);
    inside.copy_from(Slot::own(node.pointer()), Rights::ALL)?;
    equal!(debug_identify(inside.index), Some(CapabilityTag::CNode));
    Ok(())
}

pub fn mutating_moves_with_a_new_guard(bench: &mut Bench<'_>) -> Outcome {
    let node = table(bench, 4)?;
    let slot = bench.slot()?;
    refused!(slot.mutate_from(Slot::own(node.pointer()), CNodeData::new(0, 61).0), IllegalOperation);
    slot.mutate_from(Slot::own(node.pointer()), CNodeData::new(0b101, 3).0)?;
    equal!(debug_identify(node.pointer()), EMPTY);
    let moved = CNode::from_pointer(slot.index);
    let endpoint = bench.endpoint()?;
    moved.slot(0b101_0110, 7).copy_from(Slot::own(endpoint.pointer()), Rights::ALL)?;
    let failure = refused!(moved.slot(0b111_0110, 7).delete(), FailedLookup);
    equal!(failure.lookup(), Some(LookupFailureKind::GuardMismatch));
    Ok(())
}

pub fn failed_searches_say_why(bench: &mut Bench<'_>) -> Outcome {
    let node = table(bench, 4)?;
    let slot = bench.slot()?;
    slot.mint_from(Slot::own(node.pointer()), Rights::ALL, CNodeData::new(0b1101, 4).0)?;
    let root = CNode::from_pointer(slot.index);
    // The guard differs: bits left, the guard, its size.
    let failure = refused!(root.slot(0b1100_0001, 8).delete(), FailedLookup);
    equal!(failure.lookup(), Some(LookupFailureKind::GuardMismatch));
    equal!(failure.details, [0, LookupFailureKind::GuardMismatch.number() as u64, 8, 0b1101, 4, 0]);
    // Fewer bits than guard and index have.
    let failure = refused!(root.slot(0b110_1000, 7).delete(), FailedLookup);
    equal!(failure.lookup(), Some(LookupFailureKind::DepthMismatch));
    equal!(failure.details, [0, LookupFailureKind::DepthMismatch.number() as u64, 7, 8, 0, 0]);
    let failure = refused!(root.slot(0b110, 3).delete(), FailedLookup);
    equal!(failure.lookup(), Some(LookupFailureKind::GuardMismatch));
    equal!((failure.details[2], failure.details[3], failure.details[4]), (3, 0b1101, 4));
    for failure in [
        refused!(root.slot(0b110, 3).revoke(), FailedLookup),
        refused!(root.slot(0b110, 3).cancel_badged_sends(), FailedLookup),
        refused!(root.slot(0b110, 3).save_caller(), FailedLookup),
    ] {
        equal!(failure.lookup(), Some(LookupFailureKind::GuardMismatch));
    }
    // More bits, and an empty slot where they would be resolved further.
    let failure = refused!(root.slot(0b1_1010_0011, 9).delete(), FailedLookup);
    equal!(failure.lookup(), Some(LookupFailureKind::DepthMismatch));
    equal!((failure.details[0], failure.details[2], failure.details[3]), (0, 1, 0));
    // More bits, and no CNode.
    let endpoint = bench.endpoint()?;
    root.slot(0b1101_0001, 8).copy_from(Slot::own(endpoint.pointer()), Rights::ALL)?;
    let failure = refused!(root.slot(0b1_1010_0011, 9).delete(), FailedLookup);
    equal!(failure.lookup(), Some(LookupFailureKind::DepthMismatch));
    root.slot(0b1101_0001, 8).delete()?;
    Ok(())
}

pub fn long_ways_are_resolved(bench: &mut Bench<'_>) -> Outcome {
    // Sixteen tables of four bits each, one in the other, are a whole pointer.
    let first = table(bench, 4)?;
    let mut last = first;
    for _ in 1..16 {
        let next = table(bench, 4)?;
        last.slot(0b1010, 4).copy_from(Slot::own(next.pointer()), Rights::ALL)?;
        last = next;
    }
    let endpoint = bench.endpoint()?;
    let way = 0xaaaa_aaaa_aaaa_aaa3;
    first.slot(way, 64).copy_from(Slot::own(endpoint.pointer()), Rights::ALL)?;
    let seen = bench.slot()?;
    seen.copy_from(last.slot(3, 4), Rights::ALL)?;
    equal!(debug_identify(seen.index), ENDPOINT);
    for depth in (4..64).step_by(4) {
        let part = first.slot(0xaaaa_aaaa_aaaa_aaaa >> (64 - depth), depth);
        refused!(part.copy_from(Slot::own(endpoint.pointer()), Rights::ALL), DeleteFirst);
    }
    first.slot(way, 64).delete()?;
    Ok(())
}

pub fn a_table_can_contain_itself(bench: &mut Bench<'_>) -> Outcome {
    let node = table(bench, 4)?;
    let own = Slot::own(node.pointer());
    node.slot(5, 4).copy_from(own, Rights::ALL)?;
    node.slot(0x5555_5555_5555_5551, 64).copy_from(own, Rights::ALL)?;
    let (other, seen) = (table(bench, 4)?, bench.slot()?);
    node.slot(7, 4).copy_from(Slot::own(other.pointer()), Rights::ALL)?;
    other.slot(7, 4).copy_from(own, Rights::ALL)?;
    seen.copy_from(node.slot(0x7777_7777_7777_7777, 64), Rights::ALL)?;
    equal!(debug_identify(seen.index), Some(CapabilityTag::CNode));
    // Deleting the last capability from outside leaves tables that only contain each other.
    seen.delete()?;
    own.delete()?;
    Slot::own(other.pointer()).delete()?;
    Ok(())
}

pub fn rights_only_become_fewer(bench: &mut Bench<'_>) -> Outcome {
    let endpoint = bench.endpoint()?;
    let (reading, nothing) = (bench.slot()?, bench.slot()?);
    reading.copy_from(Slot::own(endpoint.pointer()), Rights::READ)?;
    nothing.copy_from(reading, Rights::ALL)?;
    // A send without the right to write is refused with an error only as a call, which waits for an answer.
    for slot in [reading, nothing] {
        let answer = Endpoint::from_pointer(slot.index).call(&sel4::Message::default());
        equal!(answer.label(), sel4::Error::InvalidCapability.number() as u64);
    }
    let notification = bench.notification()?;
    let writing = bench.badged(notification.pointer(), Rights::WRITE, 4)?;
    Notification::from_pointer(writing).signal();
    equal!(notification.poll(), Some(4));
    Ok(())
}

pub fn rotating(bench: &mut Bench<'_>) -> Outcome {
    let first = Slot::own(bench.thread()?.pointer());
    let second = Slot::own(bench.allocator.object(ObjectType::Page)?);
    let empty = bench.slot()?;
    let (thread, page) = (Some(CapabilityTag::Thread), Some(CapabilityTag::Frame));
    // From pivot to destination, from source to pivot.
    empty.rotate_from(0, first, 0, second)?;
    equal!(
        (debug_identify(empty.index), debug_identify(first.index), debug_identify(second.index)),
        (thread, page, EMPTY)
    );
    // Source and destination are equal: the two capabilities change places.
    empty.rotate_from(0, first, 0, empty)?;
    equal!(
        (debug_identify(empty.index), debug_identify(first.index), debug_identify(second.index)),
        (page, thread, EMPTY)
    );
    // The pivot is one of the others.
    refused!(second.rotate_from(0, second, 0, first), IllegalOperation);
    refused!(second.rotate_from(0, first, 0, first), IllegalOperation);
    // The destination is full, the source or the pivot empty.
    let third = Slot::own(bench.thread()?.pointer());
    refused!(third.rotate_from(0, first, 0, empty), DeleteFirst);
    refused!(second.rotate_from(0, bench.slot()?, 0, first), FailedLookup);
    refused!(second.rotate_from(0, first, 0, bench.slot()?), FailedLookup);
    // A moved capability can get a guard; capabilities with badges can only be moved unchanged.
    let node = Slot::own(table(bench, 4)?.pointer());
    refused!(second.rotate_from(0, first, CNodeData::new(0, 61).0, node), IllegalOperation);
    second.rotate_from(0, first, CNodeData::new(1, 1).0, node)?;
    equal!((debug_identify(second.index), debug_identify(node.index)), (thread, EMPTY));
    let inside = CNode::from_pointer(first.index).slot(0b1_0011, 5);
    inside.copy_from(second, Rights::ALL)?;
    let endpoint = Slot::own(bench.endpoint()?.pointer());
    refused!(node.rotate_from(0, endpoint, 0, second), IllegalOperation);
    refused!(node.rotate_from(0, second, 0, endpoint), IllegalOperation);
    Ok(())
}

pub fn revoking_deletes_derived_capabilities(bench: &mut Bench<'_>) -> Outcome {
    let original = Slot::own(bench.endpoint()?.pointer());
    let (badged, copy, plain) = (bench.slot()?, bench.slot()?, bench.slot()?);
    badged.mint_from(original, Rights::ALL, 1)?;
    copy.copy_from(badged, Rights::ALL)?;
    plain.copy_from(original, Rights::ALL)?;
    // A copy is derived from the original, not from its source.
    plain.revoke()?;
    equal!(debug_identify(badged.index), ENDPOINT);
    badged.revoke()?;
    equal!((debug_identify(badged.index), debug_identify(copy.index)), (ENDPOINT, EMPTY));
    original.revoke()?;
    equal!((debug_identify(badged.index), debug_identify(plain.index)), (EMPTY, EMPTY));
    equal!(debug_identify(original.index), ENDPOINT);
    Ok(())
}

pub fn ten_thousand_capabilities_are_revoked(bench: &mut Bench<'_>) -> Outcome {
    const COUNT: u64 = 10_000;
    let node = table(bench, 14)?;
    let original = Slot::own(bench.endpoint()?.pointer());
    for index in 0..COUNT {
        node.slot(index, 14).mint_from(original, Rights::ALL, index + 1)?;
    }
    original.revoke()?;
    let seen = bench.slot()?;
    for index in (0..COUNT).step_by(97).chain([COUNT - 1]) {
        refused!(seen.copy_from(node.slot(index, 14), Rights::ALL), FailedLookup);
    }
    equal!(debug_identify(original.index), ENDPOINT);
    Ok(())
}

pub fn a_table_takes_its_capabilities_along(bench: &mut Bench<'_>) -> Outcome {
    let node = table(bench, 8)?;
    let memory = bench.allocator.memory(14)?.untyped();
    memory.retype(ObjectType::Endpoint, 0, Slot::own(node.pointer()), 0, 256)?;
    Slot::own(node.pointer()).delete()?;
    // All endpoints are gone, so the memory is whole again.
    let first = bench.allocator.slots(2)?;
    Untyped::from_pointer(memory.pointer()).retype(
        ObjectType::Untyped,
        13,
        Slot { root: initial::CNODE, index: 0, depth: 0 },
        first,
        2,
    )?;
    Ok(())
}

pub fn untyped_memory_with_children_is_not_copied(bench: &mut Bench<'_>) -> Outcome {
    let mut arena = bench.allocator.memory(14)?;
    let (copy, object) = (bench.slot()?, bench.slot()?);
    copy.copy_from(Slot::own(arena.untyped().pointer()), Rights::ALL)?;
    copy.delete()?;
    arena.make(ObjectType::Endpoint, 0, object.index, 1)?;
    refused!(copy.copy_from(Slot::own(arena.untyped().pointer()), Rights::ALL), RevokeFirst);
    refused!(copy.mint_from(Slot::own(arena.untyped().pointer()), Rights::ALL, 0), RevokeFirst);
    copy.move_from(Slot::own(arena.untyped().pointer()))?;
    copy.revoke()?;
    equal!(debug_identify(object.index), EMPTY);
    Ok(())
}

pub fn single_rights_are_not_copied(bench: &mut Bench<'_>) -> Outcome {
    let slot = bench.slot()?;
    refused!(slot.copy_from(Slot::own(initial::IRQ_CONTROL.pointer()), Rights::ALL), IllegalOperation);
    slot.copy_from(Slot::own(initial::ASID_CONTROL.pointer()), Rights::ALL)?;
    slot.delete()?;
    slot.copy_from(Slot::own(initial::DOMAIN.pointer()), Rights::ALL)?;
    Ok(())
}

/// Sends through the endpoint and then signals: the two in one word.
fn send_then_signal(capabilities: u64) {
    let (endpoint, notification) = (capabilities >> 32, capabilities & 0xffff_ffff);
    Endpoint::from_pointer(endpoint).send(&sel4::Message::new(1, &[]));
    Notification::from_pointer(notification).signal();
}

pub fn badged_sends_are_cancelled(bench: &mut Bench<'_>) -> Outcome {
    let endpoint = bench.endpoint()?;
    let notification = bench.notification()?;
    let mut senders = [0; 2];
    for (sender, badge) in senders.iter_mut().zip([1_u64, 2]) {
        *sender = bench.badged(endpoint.pointer(), Rights::ALL, badge)?;
        let done = bench.badged(notification.pointer(), Rights::ALL, badge)?;
        bench.spawn(send_then_signal, *sender << 32 | done)?;
    }
    let_run(PRIORITY)?;
    equal!(notification.poll(), None);
    let limited = bench.slot()?;
    limited.copy_from(Slot::own(senders[0]), Rights::READ_WRITE)?;
    refused!(limited.cancel_badged_sends(), IllegalOperation);
    refused!(Slot::own(notification.pointer()).cancel_badged_sends(), IllegalOperation);
    refused!(bench.slot()?.cancel_badged_sends(), IllegalOperation);
    Slot::own(senders[0]).cancel_badged_sends()?;
    // The first sender tries again: the send is cancelled, the thread is not.
    let received = endpoint.receive();
    check!(received.badge() == 1 || received.badge() == 2);
    let other = endpoint.receive();
    equal!(received.badge() + other.badge(), 3);
    let_run(PRIORITY)?;
    equal!(notification.poll(), Some(3));
    Ok(())
}
