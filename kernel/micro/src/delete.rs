//! Deletion and revocation of capabilities.
//!
//! Most capabilities are deleted in one step. An object is destroyed in one step with its last capability, unless it
//! holds slots or threads wait at it: then a zombie, the object's *remains*, replaces the capability. CNodes, threads
//! and interrupts with a notification hold slots. Remains can be deleted and moved like a capability, and allow nothing
//! else. They are destroyed in a sequence of steps, each of which leaves a consistent state and takes at most about a
//! thousand instructions, independent of the object's size; between two steps is a preemption point. The remains alone
//! contain the progress, so that any later deletion continues where the last step stopped. Kernel code without a
//! preemption point takes a single step, or removes a reply capability, which is never the last capability to an
//! object.
//!
//! **OUTLIVED**: an object's remains are in the capability derivation tree until its slots are empty and no thread
//! waits at it. The tree prevents reuse of the object's memory.
//!
//! **HOME**: of the objects in a ring ([`deletion_ring`]) at most one has its remains in a slot that is not its
//! own.
//!
//! A CNode may hold the last capability to another CNode, which may hold the last capability to a third. A dying object
//! that is found in a slot of another dying object *goes home*: its remains move into one of its own slots, which have
//! no other use any more, and it joins the ring of the object that held it. So nesting needs neither a stack nor
//! memory, and a cycle of CNodes is no special case. When an object is destroyed, the next object of its ring moves
//! into the slot that has become free, and the deletion of that slot continues with it. An object whose deletion was
//! preempted elsewhere joins in the same way.
//!
//! A revocation that finds remains in a slot of their own object destroys that object only: the other objects of the
//! ring belong to another deletion, or were unreachable before. The invariants are argued in
//! [decision 024](../../../docs/decisions/024-deleting-and-revoking.md).

use objects::{Capability, Dying, Page, Queue, Ref, Slot};

use crate::invocation::Preempted;
use crate::kernel::Kernel;
use crate::{deletion_ring, derivation};

/// The largest number of empty slots that one step skips.
const SCAN: u64 = 64;
/// The largest number of threads that one step wakes.
const WAKE: usize = 8;

impl Kernel {
    /// Deletes the capability in a slot, which is empty afterwards unless the deletion was preempted.
    #[inline]
    pub(crate) fn delete(&self, slot: Ref<Slot>) -> Result<(), Preempted> {
        loop {
            self.delete_step(slot);
            if slot.is_empty() {
                return Ok(());
            }
            self.look_for_interrupts()?;
        }
    }

    /// Revokes the capability in a slot: deletes all capabilities derived from it. The slot's capability may be deleted
    /// with them.
    pub(crate) fn revoke(&self, slot: Ref<Slot>) -> Result<(), Preempted> {
        while let Some(next) = slot.next.get() {
            match next.capability.page() {
                // Most objects are pages and page tables, each of which is deleted in one step.
                Some(page) if derivation::has_page(&slot, page) => self.delete_page(next, page),
                _ if derivation::is_ancestor(&slot, &next) => self.delete(next)?,
                _ => break,
            }
            self.look_for_interrupts()?;
        }
        Ok(())
    }

    /// Deletes a capability of a page, or of an unmapped page table; the last capability needs no further step.
    #[inline(always)]
    fn delete_page(&self, slot: Ref<Slot>, page: Page) {
        self.log.forget(page.base);
        if let Some(mapping) = page.mapping {
            self.unmap_frame(page.base, page.size, mapping);
        }
        derivation::remove(slot);
    }

    /// Performs one step of deleting the capability in a slot.
    pub(crate) fn delete_step(&self, slot: Ref<Slot>) {
        match slot.capability.get_here() {
            Capability::Null => {}
            Capability::Remains { object, .. } => match object.slots() {
                Some((first, _)) => self.empty_a_slot(slot, object, first),
                None => self.release_some(slot, object),
            },
            capability => self.begin_deletion(slot, capability),
        }
    }

    /// Deletes a capability if the deletion is short; otherwise replaces it by its object's remains.
    fn begin_deletion(&self, slot: Ref<Slot>, capability: Capability) {
        if let Some(page) = slot.capability.page() {
            return self.delete_page(slot, page);
        }
        if let Capability::Notification { page: Some(page), .. } = capability {
            self.revoke_sender(page);
        }
        if !derivation::is_last(slot) {
            if let Capability::PageTable { mapping: Some(_), .. } = capability {
                self.begin_space_epoch();
            }
            return derivation::remove(slot);
        }
        let dying = match capability {
            Capability::Endpoint { endpoint, .. } => waiting(&endpoint.queue).then_some(Dying::Endpoint(endpoint)),
            Capability::Notification { notification, .. } => {
                self.unbind_notification(notification);
                waiting(&notification.queue).then_some(Dying::Notification(notification))
            }
            Capability::CNode { slots, radix, .. } => Some(Dying::CNode { slots, radix }),
            Capability::Thread { tcb } => {
                self.retire_handler(tcb);
                // In this order: a signal that is pending in its interrupt file must not wake it.
                self.make_inactive(tcb);
                self.unbind_thread(tcb);
                Some(Dying::Thread(tcb))
            }
            Capability::IrqHandler { irq } => {
                let slot = self.interrupts.slot(irq).filter(|slot| !slot.is_empty());
                if slot.is_none() {
                    self.release_irq(irq);
                }
                slot.map(|slot| Dying::Interrupt { irq, slot })
            }
            Capability::PageTable { table, mapping: Some(mapping) } => {
                self.begin_space_epoch();
                self.forget_table(table, mapping);
                None
            }
            Capability::AsidPool { pool, base } => {
                self.delete_asid_pool(pool, base);
                None
            }
            _ => None,
        };
        match dying {
            Some(object) => {
                slot.capability.set(Capability::Remains { object, ring: deletion_ring::alone(slot) });
                slot.set_left(object.slots().map_or(0, |(_, count)| count));
            }
            None => derivation::remove(slot),
        }
    }

    /// Performs one step with the last non-empty slot of a dying object.
    fn empty_a_slot(&self, place: Ref<Slot>, object: Dying, first: Ref<Slot>) {
        let left = place.left();
        let end = left.saturating_sub(SCAN);
        let found = (end..left).rev().find(|&index| {
            let slot = first.slot(index);
            !slot.is_empty() && slot != place
        });
        let Some(index) = found else {
            place.set_left(end);
            if end == 0 {
                self.finish_deletion(place, object);
            }
            return;
        };
        place.set_left(index + 1);
        let slot = first.slot(index);
        match slot.capability.get() {
            Capability::Remains { object, .. } => match object.slots() {
                Some((own, count)) => go_home(slot, own, count, place),
                None => self.release_some(slot, object),
            },
            capability => self.begin_deletion(slot, capability),
        }
    }

    /// Removes the remains of an object that is destroyed. The next object of its ring moves into the slot, unless that
    /// is one of the object's own slots, which are free memory now.
    fn finish_deletion(&self, place: Ref<Slot>, object: Dying) {
        let next = deletion_ring::leave(place);
        derivation::remove(place);
        if let Dying::Interrupt { irq, .. } = object {
            self.release_irq(irq);
        }
        if let Some(next) = next
            && !has_slot(object, place)
        {
            derivation::move_slot(next.capability.get(), next, place);
        }
    }

    /// Releases some of the threads that wait at a dying object: they restart their system calls, which fail.
    fn release_some(&self, place: Ref<Slot>, object: Dying) {
        let queue = match &object {
            Dying::Endpoint(endpoint) => &endpoint.queue,
            Dying::Notification(notification) => &notification.queue,
            Dying::Thread(_) | Dying::CNode { .. } | Dying::Interrupt { .. } => return,
        };
        if self.release_waiting(queue, WAKE) {
            derivation::remove(place);
        }
        self.choose_anew();
    }

    /// Returns whether deleting a slot's capability may take long, so that no other operation may replace the
    /// capability.
    #[inline]
    pub(crate) fn may_take_steps(&self, slot: Ref<Slot>) -> bool {
        match slot.capability.get() {
            Capability::Remains { .. } => true,
            Capability::Thread { .. } | Capability::CNode { .. } => derivation::is_last(slot),
            _ => false,
        }
    }
}

fn waiting(queue: &Queue) -> bool {
    queue.head.get().is_some()
}

/// Returns whether a slot is one of an object's own.
pub(crate) fn has_slot(object: Dying, slot: Ref<Slot>) -> bool {
    object.slots().is_some_and(|(first, count)| {
        let place = slot.physical().wrapping_sub(first.physical()) / size_of::<Slot>() as u64;
        place < count
    })
}

/// Moves remains out of a slot of another dying object, whose remains are at `place`, into one of their object's own
/// slots, the `count` slots from `own` on; both objects are in one ring from then on. A capability that was in that
/// slot moves to the other object's slot.
fn go_home(slot: Ref<Slot>, own: Ref<Slot>, count: u64, place: Ref<Slot>) {
    deletion_ring::join(place, slot);
    // All slots that were visited are empty. If none was, the last slot's content is exchanged without a check.
    let index = slot.left().min(count - 1);
    slot.set_left(index);
    let home = own.slot(index);
    match home.is_empty() {
        true => derivation::move_slot(slot.capability.get(), slot, home),
        false => derivation::swap(slot.capability.get(), slot, home.capability.get(), home),
    }
}
