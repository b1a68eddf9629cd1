//! Deleting and revoking.
//!
//! Most capabilities go in one step. So does an object whose last capability goes, unless it holds slots or threads
//! wait at it: then its *remains* take the place of the capability. Remains can be deleted and moved like a capability
//! and do nothing else. Taking them apart is a sequence of steps, each of which leaves everything consistent and takes
//! at most about a thousand instructions, whatever the object's size; between two of them the kernel looks for
//! interrupts. What is left to do stands in the remains alone, so that anybody who deletes them goes on where the last
//! step stopped.
//!
//! **OUTLIVED**: an object's remains are in the derivation tree until nothing is in its slots and nobody waits at it.
//! The tree is what keeps its memory from being used again.
//!
//! **HOME**: of the objects in a ring ([`ring`](crate::ring)) at most one has its remains in a slot that is not its
//! own.
//!
//! A node may hold the last capability to another one, and that to the next. The dying object that is met *goes home*:
//! its remains move into one of its own slots, which are nobody's any more, and it joins the ring of the object that
//! held it. So nesting needs neither a stack nor memory, and a circle of nodes is no special case. When an object has
//! come to its end the next of its ring moves into the slot that has become free, and the deletion of that slot goes on
//! with it. A deletion of somebody else's that is met halfway joins in the same way.
//!
//! Remains that are in a slot of their own object can be met by a revocation, which takes apart that object only: the
//! others of the ring belong to somebody else's deletion, or could not be reached by anybody before.
//! [Decision 024](../../../docs/decisions/024-deleting-and-revoking.md) says what has to hold, and why it does.

use objects::{Capability, Dying, Page, Queue, Ref, Slot};

use crate::invocation::Preempted;
use crate::kernel::Kernel;
use crate::{derivation, ring};

/// How many empty slots one step passes over.
const SCAN: u64 = 64;
/// How many threads one step wakes.
const WAKE: usize = 8;

impl Kernel {
    /// Deletes what is in a slot, which is empty unless this was interrupted.
    pub(crate) fn delete(&self, slot: Ref<Slot>) -> Result<(), Preempted> {
        loop {
            self.delete_step(slot);
            if slot.is_empty() {
                return Ok(());
            }
            self.preemption_point()?;
        }
    }

    /// Deletes a capability whose deletion is short: no object with slots goes with it.
    pub(crate) fn delete_one(&self, slot: Ref<Slot>) {
        if matches!(slot.capability.get(), Capability::Reply { .. }) {
            return derivation::remove(slot);
        }
        while !slot.is_empty() {
            self.delete_step(slot);
        }
    }

    /// Deletes everything that was derived from what is in a slot. That may take away what is in the slot, too.
    pub(crate) fn revoke(&self, slot: Ref<Slot>) -> Result<(), Preempted> {
        while let Some(next) = slot.next.get() {
            match next.capability.page() {
                // Most of what is made of memory is pages and tables, and each of them goes in one step.
                Some(page) if derivation::has_page(&slot, page) => self.delete_page(next, page),
                _ if derivation::is_parent(&slot, &next) => self.delete(next)?,
                _ => break,
            }
            self.preemption_point()?;
        }
        Ok(())
    }

    /// Deletes a capability of a page, or of a page table that is mapped nowhere: the last one as any other.
    #[inline(always)]
    fn delete_page(&self, slot: Ref<Slot>, page: Page) {
        if let Some(mapping) = page.mapping {
            self.unmap_frame(page.base, page.size, mapping);
        }
        derivation::remove(slot);
    }

    /// Takes one step towards an empty slot.
    fn delete_step(&self, slot: Ref<Slot>) {
        match slot.capability.get() {
            Capability::Null => {}
            Capability::Remains { object, .. } => match object.slots() {
                Some((first, _)) => self.empty_a_slot(slot, object, first),
                None => self.release_some(slot, object),
            },
            capability => self.begin_deletion(slot, capability),
        }
    }

    /// Deletes a capability, if that is short; otherwise its object's remains take its place.
    fn begin_deletion(&self, slot: Ref<Slot>, capability: Capability) {
        if let Some(page) = slot.capability.page() {
            return self.delete_page(slot, page);
        }
        if let Capability::Notification { page: Some(page), .. } = capability {
            self.revoke_sender(page);
        }
        if !derivation::is_final(slot) {
            if let Capability::PageTable { mapping: Some(_), .. } = capability {
                self.begin_space_epoch();
            }
            return derivation::remove(slot);
        }
        let mut unused_irq = None;
        let dying = match capability {
            Capability::Endpoint { endpoint, .. } => waiting(&endpoint.queue).then_some(Dying::Endpoint(endpoint)),
            Capability::Notification { notification, .. } => {
                self.unbind_notification(notification);
                waiting(&notification.queue).then_some(Dying::Notification(notification))
            }
            Capability::CNode { slots, radix, .. } => Some(Dying::CNode { slots, radix }),
            Capability::Thread { tcb } => {
                self.forget_handler(tcb);
                // In this order: what was pending in its interrupt file must not wake it.
                self.suspend(tcb);
                self.unbind_thread(tcb);
                Some(Dying::Thread(tcb))
            }
            Capability::IrqHandler { irq } => {
                self.stop_irq(irq);
                unused_irq = Some(irq);
                None
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
                slot.capability.set(Capability::Remains { object, ring: ring::alone(slot) });
                slot.set_left(object.slots().map_or(0, |(_, count)| count));
            }
            None => derivation::remove(slot),
        }
        if let Some(irq) = unused_irq {
            self.release_irq(irq);
        }
    }

    /// Takes a step with the last of the slots that a dying object has left.
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

    /// Frees an object that has nothing left. The next of its ring takes its slot, unless that is one of the object's
    /// own, which is free memory now.
    fn finish_deletion(&self, place: Ref<Slot>, object: Dying) {
        let next = ring::leave(place);
        derivation::remove(place);
        if let Some(next) = next
            && !has_slot(object, place)
        {
            derivation::move_slot(next.capability.get(), next, place);
        }
    }

    /// Lets some of the threads go that wait at a dying object: they begin again, and find out.
    fn release_some(&self, place: Ref<Slot>, object: Dying) {
        let queue = match &object {
            Dying::Endpoint(endpoint) => &endpoint.queue,
            Dying::Notification(notification) => &notification.queue,
            Dying::Thread(_) | Dying::CNode { .. } => return,
        };
        if self.release_waiting(queue, WAKE) {
            derivation::remove(place);
        }
        self.reschedule();
    }

    /// Whether deleting what is in a slot could take long, so that it cannot be replaced as part of something else.
    pub(crate) fn is_long_deletion(&self, slot: Ref<Slot>) -> bool {
        match slot.capability.get() {
            Capability::Remains { .. } => true,
            Capability::Thread { .. } | Capability::CNode { .. } => derivation::is_final(slot),
            _ => false,
        }
    }
}

fn waiting(queue: &Queue) -> bool {
    queue.head.get().is_some()
}

/// Whether a slot is one of an object's own.
pub(crate) fn has_slot(object: Dying, slot: Ref<Slot>) -> bool {
    object.slots().is_some_and(|(first, count)| {
        let place = slot.physical().wrapping_sub(first.physical()) / size_of::<Slot>() as u64;
        place < count
    })
}

/// Moves remains out of a slot of another dying object, whose remains are at `place`, into one of the `count` slots
/// from `own` on that were their object's; both are in one ring from then on. What was in that slot, if anything was,
/// is in the other object's now.
fn go_home(slot: Ref<Slot>, own: Ref<Slot>, count: u64, place: Ref<Slot>) {
    ring::join(place, slot);
    // All slots that were looked at are empty. If none was, the last one is exchanged unseen.
    let index = slot.left().min(count - 1);
    slot.set_left(index);
    let home = own.slot(index);
    match home.is_empty() {
        true => derivation::move_slot(slot.capability.get(), slot, home),
        false => derivation::swap(slot.capability.get(), slot, home.capability.get(), home),
    }
}
