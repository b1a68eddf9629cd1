//! Invocations of CNodes: copying, moving, deleting and revoking capabilities.

use abi_sel4::{FailedLookup, Invocation, InvocationError, Operand, Rights};
use objects::{Capability, Ref, Slot, own};

use crate::capability::Badges;
use crate::invocation::{Arguments, Preempted};
use crate::kernel::Kernel;
use crate::{capability, cspace, derivation};

/// A decoded invocation.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the fields are the invocations' own")]
pub enum CNodeCall {
    Revoke { slot: Ref<Slot> },
    Delete { slot: Ref<Slot> },
    SaveCaller { caller: Ref<Slot>, slot: Ref<Slot> },
    CancelBadgedSends { slot: Ref<Slot> },
    Insert { capability: Capability, source: Ref<Slot>, destination: Ref<Slot> },
    Move { capability: Capability, source: Ref<Slot>, destination: Ref<Slot> },
    Rotate { first: Capability, source: Ref<Slot>, second: Capability, pivot: Ref<Slot>, destination: Ref<Slot> },
}

/// Decodes an invocation of a CNode.
pub fn decode_cnode(
    invocation: Option<Invocation>,
    node: Capability,
    arguments: &Arguments,
) -> Result<CNodeCall, InvocationError> {
    use Invocation::*;
    let Some(
        invocation @ (CNodeRevoke
        | CNodeDelete
        | CNodeCancelBadgedSends
        | CNodeCopy
        | CNodeMint
        | CNodeMove
        | CNodeMutate
        | CNodeRotate
        | CNodeSaveCaller),
    ) = invocation
    else {
        return Err(InvocationError::IllegalOperation);
    };
    if arguments.length() < 2 {
        return Err(InvocationError::TruncatedMessage);
    }
    let [index, depth] = arguments.words::<2>();
    let slot = cspace::target(Operand::Destination, node, index, depth)?;
    match invocation {
        CNodeRevoke => Ok(CNodeCall::Revoke { slot }),
        CNodeDelete => Ok(CNodeCall::Delete { slot }),
        CNodeSaveCaller => match slot.is_empty() {
            true => Ok(CNodeCall::SaveCaller { caller: arguments.thread().own_slot(own::CALLER), slot }),
            false => Err(InvocationError::DeleteFirst),
        },
        CNodeCancelBadgedSends => match slot.capability.get() {
            Capability::Endpoint { rights: Rights::ALL, .. } => Ok(CNodeCall::CancelBadgedSends { slot }),
            _ => Err(InvocationError::IllegalOperation),
        },
        CNodeRotate => decode_rotate(slot, arguments),
        _ => decode_transfer(invocation, slot, arguments),
    }
}

fn missing(operand: Operand, bits_left: u64) -> InvocationError {
    InvocationError::FailedLookup { operand, failure: FailedLookup::MissingCapability { bits_left } }
}

fn decode_transfer(
    invocation: Invocation,
    destination: Ref<Slot>,
    arguments: &Arguments,
) -> Result<CNodeCall, InvocationError> {
    if arguments.length() < 4 {
        return Err(InvocationError::TruncatedMessage);
    }
    let root = arguments.capability(0)?;
    let [_, _, index, depth] = arguments.words::<4>();
    if !destination.is_empty() {
        return Err(InvocationError::DeleteFirst);
    }
    let source = cspace::target(Operand::Source, root.capability.get(), index, depth)?;
    let found = source.capability.get();
    if found == Capability::Null {
        return Err(missing(Operand::Source, depth));
    }
    let copied = |capability| match derivation::copy_of(source, capability)? {
        Capability::Null => Err(InvocationError::IllegalOperation),
        capability => Ok(CNodeCall::Insert { capability, source, destination }),
    };
    match invocation {
        Invocation::CNodeCopy => {
            let [_, _, _, _, rights] = arguments.at_least::<5>()?;
            copied(capability::restrict(found, rights))
        }
        Invocation::CNodeMint => {
            let [_, _, _, _, rights, data] = arguments.at_least::<6>()?;
            copied(capability::with_data(Badges::Set, data, capability::restrict(found, rights)))
        }
        Invocation::CNodeMutate => {
            let [_, _, _, _, data] = arguments.at_least::<5>()?;
            match capability::with_data(Badges::Keep, data, found) {
                Capability::Null => Err(InvocationError::IllegalOperation),
                capability => Ok(CNodeCall::Move { capability, source, destination }),
            }
        }
        _ => Ok(CNodeCall::Move { capability: found, source, destination }),
    }
}

fn decode_rotate(destination: Ref<Slot>, arguments: &Arguments) -> Result<CNodeCall, InvocationError> {
    if arguments.length() < 8 {
        return Err(InvocationError::TruncatedMessage);
    }
    let (pivot_root, source_root) = (arguments.capability(0)?, arguments.capability(1)?);
    let [_, _, pivot_data, pivot_index, pivot_depth, source_data, source_index, source_depth] = arguments.words::<8>();
    let source = cspace::target(Operand::Source, source_root.capability.get(), source_index, source_depth)?;
    let pivot = cspace::target(Operand::Destination, pivot_root.capability.get(), pivot_index, pivot_depth)?;
    if pivot == source || pivot == destination {
        return Err(InvocationError::IllegalOperation);
    }
    if source != destination && !destination.is_empty() {
        return Err(InvocationError::DeleteFirst);
    }
    if source.is_empty() {
        return Err(missing(Operand::Source, source_depth));
    }
    if pivot.is_empty() {
        return Err(missing(Operand::Destination, pivot_depth));
    }
    let first = capability::with_data(Badges::Keep, source_data, source.capability.get());
    let second = capability::with_data(Badges::Keep, pivot_data, pivot.capability.get());
    if first == Capability::Null || second == Capability::Null {
        return Err(InvocationError::IllegalOperation);
    }
    Ok(CNodeCall::Rotate { first, source, second, pivot, destination })
}

impl Kernel {
    /// Performs a decoded invocation.
    pub(crate) fn invoke_cnode(&self, call: CNodeCall) -> Result<(), Preempted> {
        match call {
            CNodeCall::Revoke { slot } => return self.revoke(slot),
            CNodeCall::Delete { slot } => return self.delete(slot),
            CNodeCall::SaveCaller { caller, slot } => {
                if let capability @ Capability::Reply { .. } = caller.capability.get() {
                    derivation::move_slot(capability, caller, slot);
                }
            }
            CNodeCall::CancelBadgedSends { slot } => {
                if let Capability::Endpoint { endpoint, badge, .. } = slot.capability.get()
                    && badge != 0
                {
                    return self.cancel_badged_sends(endpoint, badge);
                }
            }
            CNodeCall::Insert { capability, source, destination } => {
                derivation::insert_derived(capability, source, destination)
            }
            CNodeCall::Move { capability, source, destination } => {
                derivation::move_slot(capability, source, destination)
            }
            CNodeCall::Rotate { first, source, second, pivot, destination } => {
                if source == destination {
                    derivation::swap(first, source, second, pivot);
                } else {
                    derivation::move_slot(second, pivot, destination);
                    derivation::move_slot(first, source, pivot);
                }
            }
        }
        Ok(())
    }
}
