//! The capability derivation tree: the parent of each capability.
//!
//! All capabilities of objects are in lists in preorder of the tree. The relation of child and parent is not stored but
//! determined by comparison ([`is_ancestor`]): the child follows the parent, refers to the same object or a part of it,
//! and the parent is marked as an original. So deleting a capability in the middle needs no repair of its children; by
//! the same comparison they become its parent's children.
//!
//! A depth in each slot was considered and rejected: when a capability is deleted, its children would keep a depth that
//! makes them children of the sibling before it.

use abi_sel4::InvocationError;
use objects::{Capability, Lineage, Page, Ref, Slot, tag};

use crate::capability::{covers, is_within, share_object};
use crate::deletion_ring;

/// Returns whether the second capability, which must follow the first in the list, is a child of the first.
pub fn is_ancestor(parent: &Slot, child: &Slot) -> bool {
    if !parent.is_original() {
        return false;
    }
    let (above, below) = (parent.capability.get(), child.capability.get());
    if !covers(&above, &below) {
        return false;
    }
    match (above, below) {
        (Capability::Endpoint { badge: 0, .. }, _) | (Capability::Notification { badge: 0, .. }, _) => true,
        (Capability::Endpoint { badge, .. }, Capability::Endpoint { badge: other, .. })
        | (Capability::Notification { badge, .. }, Capability::Notification { badge: other, .. }) => {
            badge == other && !child.starts_badge()
        }
        _ => true,
    }
}

/// Returns whether anything is derived from a slot's capability.
#[inline]
pub fn has_children(slot: Ref<Slot>) -> bool {
    slot.next.get().is_some_and(|next| is_ancestor(&slot, &next))
}

/// As [`is_ancestor`], for a page or an unmapped page table behind an untyped capability.
#[inline(always)]
pub fn has_page(parent: &Slot, page: Page) -> bool {
    let Some((base, bits)) = parent.capability.untyped() else { return false };
    // An object that begins in untyped memory never ends outside of it, unless the untyped memory lies in the object.
    parent.is_original() && page.base.wrapping_sub(base) >> bits == 0 && page.size.bits() <= u32::from(bits)
}

/// As [`has_children`], for a slot with a capability to this untyped memory: the other kinds of capabilities need no
/// distinction.
#[inline(always)]
pub fn has_objects(slot: Ref<Slot>, base: u64, bits: u8) -> bool {
    slot.is_original() && slot.next.get().is_some_and(|next| is_within(base, bits, &next.capability.get()))
}

/// Returns whether a slot's capability is the last one of its object.
pub fn is_last(slot: Ref<Slot>) -> bool {
    let capability = slot.capability.get();
    let same = |other: Option<Ref<Slot>>| other.is_some_and(|other| share_object(&capability, &other.capability.get()));
    !same(slot.previous.get()) && !same(slot.next.get())
}

/// Inserts a capability into an empty slot, derived from the capability in `source`.
#[inline]
pub fn insert_derived(capability: Capability, source: Ref<Slot>, slot: Ref<Slot>) {
    let lineage = lineage(&capability, &source.capability.get());
    link_behind(source, slot);
    slot.set_lineage(lineage);
    // Untyped memory whose capability is copied counts as used: otherwise both capabilities could make objects in it.
    if let (Capability::Untyped { base, bits, device, .. }, Capability::Untyped { base: new_base, bits: new_bits, .. }) =
        (source.capability.get(), capability)
        && base == new_base
        && bits == new_bits
    {
        source.capability.set(Capability::Untyped { base, bits, device, used: 1 << bits });
    }
    slot.capability.set(capability);
}

/// Inserts a capability of a new object into an empty slot, as a child of the capability in `parent`.
#[inline(always)]
pub fn insert_new(parent: Ref<Slot>, slot: Ref<Slot>, capability: Capability) {
    link_behind(parent, slot);
    slot.set_lineage(Lineage::Original);
    slot.capability.set(capability);
}

/// As [`insert_new`] for each slot of a row; the last slot follows the parent in the list.
#[inline(always)]
pub fn insert_row(parent: Ref<Slot>, first: Ref<Slot>, count: u64, capability: impl Fn(u64) -> Capability) {
    let mut behind = parent.next.get();
    let (mut slot, mut index) = (first, 0);
    if let Some(behind) = behind {
        behind.previous.set(Some(first));
    }
    loop {
        slot.capability.set(capability(index));
        slot.set_lineage(Lineage::Original);
        slot.next.set(behind);
        index += 1;
        if index >= count {
            break;
        }
        let following = slot.slot(1);
        slot.previous.set(Some(following));
        behind = Some(slot);
        slot = following;
    }
    slot.previous.set(Some(parent));
    parent.next.set(Some(slot));
}

#[inline(always)]
fn link_behind(before: Ref<Slot>, slot: Ref<Slot>) {
    let next = before.next.get();
    slot.previous.set(Some(before));
    slot.next.set(next);
    before.next.set(Some(slot));
    if let Some(next) = next {
        next.previous.set(Some(slot));
    }
}

/// Returns the relation of a capability derived from `source` to the capabilities that follow it.
fn lineage(derived: &Capability, source: &Capability) -> Lineage {
    let is_original = match (derived, source) {
        (Capability::Endpoint { badge, .. }, Capability::Endpoint { badge: from, .. }) => badge != from,
        (Capability::Notification { badge, .. }, Capability::Notification { badge: from, .. }) => badge != from,
        (Capability::IrqHandler { .. }, Capability::IrqControl) => true,
        (Capability::Untyped { .. }, _) => true,
        _ => false,
    };
    if is_original { Lineage::Original } else { Lineage::Copy }
}

/// Moves a slot's capability, possibly changed, to an empty slot.
#[inline]
pub fn move_slot(capability: Capability, from: Ref<Slot>, to: Ref<Slot>) {
    to.copy_place(&from);
    to.capability.set(capability);
    from.reset();
    relink(to);
    if to.capability.tag() == tag::ZOMBIE {
        deletion_ring::moved(from, to);
    }
}

/// Makes the neighbours of a slot point to it.
#[inline(always)]
fn relink(slot: Ref<Slot>) {
    if let Some(previous) = slot.previous.get() {
        previous.next.set(Some(slot));
    }
    if let Some(next) = slot.next.get() {
        next.previous.set(Some(slot));
    }
}

/// Exchanges the capabilities of two slots, possibly changed.
pub fn swap(first_capability: Capability, first: Ref<Slot>, second_capability: Capability, second: Ref<Slot>) {
    first.capability.set(second_capability);
    second.capability.set(first_capability);
    let (first_previous, first_next) = (first.previous.get(), first.next.get());
    let (second_previous, second_next) = (second.previous.get(), second.next.get());
    first.swap_flags(&second);
    // If the two are neighbours, each links to the other.
    let other = |place: Option<Ref<Slot>>, own: Ref<Slot>, instead: Ref<Slot>| match place {
        Some(place) if place == own => Some(instead),
        place => place,
    };
    first.previous.set(other(second_previous, first, second));
    first.next.set(other(second_next, first, second));
    second.previous.set(other(first_previous, second, first));
    second.next.set(other(first_next, second, first));
    relink(first);
    relink(second);
    deletion_ring::exchanged(first, second);
}

/// Removes a slot from the list and empties it.
#[inline]
pub fn remove(slot: Ref<Slot>) {
    let (previous, next) = (slot.previous.get(), slot.next.get());
    if let Some(previous) = previous {
        previous.next.set(next);
    }
    if let Some(next) = next {
        next.previous.set(previous);
        // After the first capability with its badge, the next must not become a sibling's child.
        if slot.starts_badge() {
            next.mark_badge_start();
        }
    }
    slot.reset();
}

/// Returns the capability that a copy would have.
///
/// # Errors
/// If it cannot be copied now. [`Capability::Null`] as a result means that it can never be copied.
#[inline]
pub fn copy_of(slot: Ref<Slot>, capability: Capability) -> Result<Capability, InvocationError> {
    Ok(match capability {
        Capability::Remains { .. } | Capability::IrqControl | Capability::Reply { .. } => Capability::Null,
        Capability::Untyped { .. } if has_children(slot) => return Err(InvocationError::RevokeFirst),
        Capability::PageTable { mapping: None, .. } => return Err(InvocationError::IllegalOperation),
        Capability::Frame { base, size, rights, device, .. } => {
            Capability::Frame { base, size, rights, device, mapping: None }
        }
        Capability::Notification { notification, badge, rights, .. } => {
            Capability::Notification { notification, badge, rights, page: None }
        }
        other => other,
    })
}
