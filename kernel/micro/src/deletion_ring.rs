//! Rings of dying objects that are destroyed together.
//!
//! An object whose last capability was deleted, and that cannot be destroyed in one step, leaves its *remains* (a
//! zombie) in the slot of that capability. Remains that belong together are linked in a ring through the slots that
//! hold them. A ring has no beginning, so that joining two rings, and removing a member, take a constant number of
//! stores, from any member.

use objects::{Capability, Dying, Ref, Ring, Slot};

/// Makes a ring of one member, the remains in this slot.
pub fn alone(slot: Ref<Slot>) -> Ring {
    Ring { next: slot, previous: slot }
}

/// Returns the object whose remains are in a slot, and its ring.
#[inline]
fn remains(slot: Ref<Slot>) -> Option<(Dying, Ring)> {
    match slot.capability.get() {
        Capability::Remains { object, ring } => Some((object, ring)),
        _ => None,
    }
}

fn change(slot: Ref<Slot>, change: impl FnOnce(Ring) -> Ring) {
    if let Some((object, ring)) = remains(slot) {
        slot.capability.set(Capability::Remains { object, ring: change(ring) });
    }
}

/// Links two neighbours.
fn link(before: Ref<Slot>, behind: Ref<Slot>) {
    change(before, |ring| Ring { next: behind, ..ring });
    change(behind, |ring| Ring { previous: before, ..ring });
}

/// Joins the rings of two members. If they are in one ring already, splits it.
pub fn join(first: Ref<Slot>, second: Ref<Slot>) {
    if let (Some((_, one)), Some((_, other))) = (remains(first), remains(second)) {
        link(first, other.next);
        link(second, one.next);
    }
}

/// Removes a member from its ring; returns the next member, if there is another.
pub fn leave(slot: Ref<Slot>) -> Option<Ref<Slot>> {
    let (_, Ring { next, previous }) = remains(slot)?;
    link(previous, next);
    change(slot, |_| alone(slot));
    (next != slot).then_some(next)
}

/// Repairs a ring after one of its members has moved to another slot.
pub fn moved(from: Ref<Slot>, to: Ref<Slot>) {
    let Some((_, Ring { next, previous })) = remains(to) else { return };
    if next == from {
        change(to, |_| alone(to));
    } else {
        link(previous, to);
        link(to, next);
    }
}

/// Repairs the rings after the capabilities of two slots were exchanged.
pub fn exchanged(first: Ref<Slot>, second: Ref<Slot>) {
    let instead = |slot: Ref<Slot>| match slot {
        slot if slot == first => second,
        slot if slot == second => first,
        slot => slot,
    };
    // The two themselves first: they may be neighbours.
    for slot in [first, second] {
        change(slot, |ring| Ring { next: instead(ring.next), previous: instead(ring.previous) });
    }
    for slot in [first, second] {
        if let Some((_, Ring { next, previous })) = remains(slot) {
            link(previous, slot);
            link(slot, next);
        }
    }
}
