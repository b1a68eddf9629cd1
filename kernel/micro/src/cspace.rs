//! Resolution of capability addresses to slots.

use abi_sel4::{FailedLookup, InvocationError, Operand};
use objects::{CNode, Capability, Ref, Slot, Tcb, own};

/// Resolves an address of `bits` bits from a CNode. Returns the slot and the number of unused bits.
///
/// The resolution ends at the first slot without a CNode, or when all bits are used. A cycle of CNodes terminates too,
/// because every CNode uses at least one bit.
///
/// # Errors
/// The failed step of the resolution.
#[inline(always)]
pub fn resolve(mut cnode: CNode, address: u64, mut bits: u64) -> Result<(Ref<Slot>, u64), FailedLookup> {
    // The remaining bits, from the highest place on. Shifts that may be by 64 are made in two steps.
    let mut left = address << ((64 - bits) & 63);
    loop {
        let CNode { slots, radix, guard_bits, high_guard } = cnode;
        left ^= high_guard;
        if guard_bits > bits || left >> 1 >> (63 - guard_bits) != 0 {
            let guard_found = cnode.guard();
            return Err(FailedLookup::GuardMismatch { bits_left: bits, guard_found, bits_found: guard_bits });
        }
        let level = guard_bits + radix;
        if level > bits {
            return Err(FailedLookup::DepthMismatch { bits_left: bits, bits_found: level });
        }
        left <<= guard_bits;
        let slot = slots.in_node(left >> 1 >> (63 - radix));
        bits -= level;
        if bits == 0 {
            return Ok((slot, 0));
        }
        left <<= radix;
        match slot.capability.cnode() {
            Some(next) => cnode = next,
            None => return Ok((slot, bits)),
        }
    }
}

/// Resolves an address in a thread's capability space.
///
/// # Errors
/// The failed step of the resolution.
#[inline(always)]
pub fn lookup(thread: Ref<Tcb>, address: u64) -> Result<Ref<Slot>, FailedLookup> {
    let root = thread.slots[own::CSPACE].capability.cnode().ok_or(FailedLookup::InvalidRoot)?;
    resolve(root, address, 64).map(|(slot, _)| slot)
}

/// Resolves an operand of an invocation: a root, an address and a depth.
///
/// # Errors
/// As in seL4; the error names the `operand`.
pub fn target(operand: Operand, root: Capability, address: u64, depth: u64) -> Result<Ref<Slot>, InvocationError> {
    let failed = |failure| InvocationError::FailedLookup { operand, failure };
    let Capability::CNode { slots, radix, guard_bits, guard } = root else {
        return Err(failed(FailedLookup::InvalidRoot));
    };
    if !(1..=64).contains(&depth) {
        return Err(InvocationError::RangeError { minimum: 1, maximum: 64 });
    }
    let root = CNode::new(slots, radix, guard_bits, guard);
    match resolve(root, address, depth).map_err(failed)? {
        (slot, 0) => Ok(slot),
        (_, bits_left) => Err(failed(FailedLookup::DepthMismatch { bits_left, bits_found: 0 })),
    }
}

/// Resolves an operand as [`target`] does, to a slot that must be empty.
///
/// # Errors
/// As `target`, and [`InvocationError::DeleteFirst`].
#[inline]
pub fn empty_target(root: Capability, address: u64, depth: u64) -> Result<Ref<Slot>, InvocationError> {
    let slot = target(Operand::Destination, root, address, depth)?;
    if slot.is_empty() { Ok(slot) } else { Err(InvocationError::DeleteFirst) }
}
