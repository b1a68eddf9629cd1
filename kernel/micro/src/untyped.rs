//! Untyped memory, and retyping it into objects.
//!
//! An untyped capability contains a watermark: its memory is used from the beginning up to it. While the capability has
//! children, new objects are placed behind the watermark. When it has none, the next retype first resets it: the memory
//! is cleared in pieces, from the watermark to the beginning, so that a preempted clearing continues where it stopped.
//! So all memory behind the watermark is zero.

use abi_sel4::{FailedLookup, InvocationError, ObjectType, Operand, Rights, configuration, object};
use objects::{Capability, FrameSize, Object, PageRights, Ref, Row, Slot, claim_row, clear};

use crate::invocation::{Arguments, Preempted};
use crate::kernel::Kernel;
use crate::{cspace, derivation};

/// Logarithm of the largest size, as a message word for comparisons; the next constant is that of the smallest size.
const MAXIMUM_BITS: u64 = object::MAXIMUM_UNTYPED_BITS as u64;
const MINIMUM_BITS: u64 = object::MINIMUM_UNTYPED_BITS as u64;
/// The largest number of objects of one invocation.
const LIMIT: u64 = configuration::RETYPE_LIMIT as u64;
/// Logarithm of the number of bytes that are cleared between two preemption points.
const CHUNK_BITS: u32 = 12;

/// Returns the number of free bytes of untyped memory of `1 << bits` bytes.
pub fn free_bytes(bits: u8, used: u64) -> u64 {
    (1 << bits) - used
}

/// Returns the offset of the next object of a size.
pub fn align(used: u64, object_bits: u32) -> u64 {
    used.next_multiple_of(1 << object_bits)
}

/// A decoded invocation.
#[derive(Clone, Copy, Debug)]
pub struct Retype {
    slot: Ref<Slot>,
    base: u64,
    bits: u8,
    device: bool,
    used: u64,
    /// Whether the capability has no children, so that the memory is used from the beginning.
    is_anew: bool,
    kind: ObjectType,
    given: u8,
    object_bits: u32,
    first: Ref<Slot>,
    count: u64,
}

/// Decodes an invocation of untyped memory.
#[inline(always)]
pub fn decode_untyped(
    slot: Ref<Slot>,
    capability: Capability,
    arguments: &Arguments,
) -> Result<Retype, InvocationError> {
    let Capability::Untyped { base, bits, device, used } = capability else {
        return Err(InvocationError::IllegalOperation);
    };
    if arguments.length() < 6 {
        return Err(InvocationError::TruncatedMessage);
    }
    let root = arguments.capability(0)?;
    let [kind, given, node_index, node_depth, node_offset, count] = arguments.words::<6>();
    let kind = match usize::try_from(kind).ok().and_then(ObjectType::from_number) {
        Some(kind) => kind,
        None => return Err(InvocationError::InvalidArgument(0)),
    };
    let object_bits = if given >= 64 { u64::MAX } else { kind.size_bits(given as usize) as u64 };
    if given >= 64 || object_bits > MAXIMUM_BITS {
        return Err(InvocationError::RangeError { minimum: 0, maximum: MAXIMUM_BITS });
    }
    if kind == ObjectType::CapTable && given == 0 || kind == ObjectType::Untyped && given < MINIMUM_BITS {
        return Err(InvocationError::InvalidArgument(1));
    }

    let node = match node_depth {
        0 => root.capability.get_here(),
        _ => cspace::target(Operand::Destination, root.capability.get_here(), node_index, node_depth)?
            .capability
            .get_here(),
    };
    let Capability::CNode { slots, radix, .. } = node else {
        let failure = FailedLookup::MissingCapability { bits_left: node_depth };
        return Err(InvocationError::FailedLookup { operand: Operand::Destination, failure });
    };
    let size = 1u64 << radix;
    if node_offset > size - 1 {
        return Err(InvocationError::RangeError { minimum: 0, maximum: size - 1 });
    }
    if !(1..=LIMIT).contains(&count) {
        return Err(InvocationError::RangeError { minimum: 1, maximum: LIMIT });
    }
    if count > size - node_offset {
        return Err(InvocationError::RangeError { minimum: 1, maximum: size - node_offset });
    }
    let first = slots.slot(node_offset);
    if !Slot::are_empty(first.row(count)) {
        return Err(InvocationError::DeleteFirst);
    }

    let is_anew = !derivation::has_objects(slot, base, bits);
    let start = if is_anew { 0 } else { used };
    let available = free_bytes(bits, start);
    if available >> object_bits < count {
        return Err(InvocationError::NotEnoughMemory { available });
    }
    if device && !kind.may_be_device() {
        return Err(InvocationError::InvalidArgument(1));
    }
    let object_bits = object_bits as u32;
    Ok(Retype { slot, base, bits, device, used, is_anew, kind, given: given as u8, object_bits, first, count })
}

impl Kernel {
    /// Performs a decoded invocation.
    #[inline(always)]
    pub(crate) fn invoke_untyped(&self, call: Retype) -> Result<(), Preempted> {
        let Retype { slot, base, bits, device, mut used, .. } = call;
        if call.is_anew {
            self.clear_used(slot, base, bits, device, used)?;
            used = 0;
        }
        let start = align(used, call.object_bits);
        let end = start + (call.count << call.object_bits);
        slot.capability.set(Capability::Untyped { base, bits, device, used: end });
        self.create_row(&call, base + start);
        Ok(())
    }

    /// Clears the memory before the watermark, which no object uses any more. Device memory is never cleared.
    fn clear_used(&self, slot: Ref<Slot>, base: u64, bits: u8, device: bool, used: u64) -> Result<(), Preempted> {
        let set = |used| slot.capability.set(Capability::Untyped { base, bits, device, used });
        if device {
            set(0);
            return Ok(());
        }
        let piece = 1 << CHUNK_BITS.min(bits.into());
        let mut left = used.next_multiple_of(piece);
        while left > 0 {
            left -= piece;
            clear(base + left, piece);
            set(left);
            self.look_for_interrupts()?;
        }
        Ok(())
    }

    /// Creates objects in cleared memory, the first at this address. Each kind has a loop of its own, because there is
    /// no preemption point: 256 objects must be created in the time that a step may take.
    #[inline(always)]
    fn create_row(&self, call: &Retype, start: u64) {
        let (device, given) = (call.device, call.given);
        let address = |index: u64| start + (index << call.object_bits);
        let frame = |size| {
            move |index| Capability::Frame {
                base: address(index),
                size,
                rights: PageRights::ReadWrite,
                device,
                mapping: None,
            }
        };
        match call.kind {
            ObjectType::Untyped => {
                insert_row(call, |index| Capability::Untyped { base: address(index), bits: given, device, used: 0 });
            }
            ObjectType::Tcb => {
                let (row, domain) = (claim_objects::<objects::Tcb>(call, start), self.domains.current());
                insert_row(call, |index| {
                    let tcb = row.get(index);
                    tcb.time_slice.set(self.turn.get());
                    tcb.domain.set(domain);
                    tcb.affinity.set(0);
                    Capability::Thread { tcb }
                });
            }
            ObjectType::Endpoint => {
                let row = claim_objects(call, start);
                insert_row(call, |index| Capability::Endpoint {
                    endpoint: row.get(index),
                    badge: 0,
                    rights: Rights::ALL,
                });
            }
            ObjectType::Notification => {
                let row = claim_objects(call, start);
                let rights = Rights::READ_WRITE;
                insert_row(call, |index| Capability::Notification {
                    notification: row.get(index),
                    badge: 0,
                    rights,
                    page: None,
                });
            }
            ObjectType::CapTable => {
                let row = claim_objects(call, start);
                insert_row(call, |index| Capability::CNode {
                    slots: row.get(index),
                    radix: given,
                    guard_bits: 0,
                    guard: 0,
                });
            }
            ObjectType::Page => insert_row(call, frame(FrameSize::Small)),
            ObjectType::MegaPage => insert_row(call, frame(FrameSize::Mega)),
            ObjectType::GigaPage => insert_row(call, frame(FrameSize::Giga)),
            ObjectType::PageTable => {
                let row = claim_objects(call, start);
                insert_row(call, |index| Capability::PageTable { table: row.get(index), mapping: None });
            }
        }
    }
}

/// Makes references to the objects of an invocation, which lie in a row from this address on.
#[inline(always)]
fn claim_objects<T: Object>(call: &Retype, start: u64) -> Row<T> {
    claim_row(start, call.count, call.object_bits)
}

/// Inserts the capabilities of new objects into the invocation's slots, as children of the untyped capability.
#[inline(always)]
fn insert_row(call: &Retype, capability: impl Fn(u64) -> Capability) {
    derivation::insert_row(call.slot, call.first, call.count, capability);
}
