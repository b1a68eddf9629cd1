//! Deleting capabilities, and the objects whose last capability goes.
//!
//! A node or a thread holds slots, whose capabilities must be deleted before the object's memory is free. That can take long,
//! needs no memory, and may be interrupted after each step. So the last capability to such an object becomes a *zombie*: a
//! capability that counts how many slots are left, in the place of the one that was deleted. Each step empties the
//! zombie's last slot. The same system call, made again after an interrupt, or whoever deletes the zombie later, goes on
//! where the last step stopped.
//!
//! If the last slot holds the last capability to another such object, that becomes a zombie too, and is moved into its own
//! first slot instead of being followed: so the depth of nesting costs neither stack nor memory. From then on nothing leads
//! to that object but the derivation tree, through which it is found when its memory is revoked; until then its slots
//! keep what they hold.

use objects::{Capability, Ref, Slot, TCB_SLOTS, Tcb, ThreadState, Zombie};

use crate::Kernel;
use crate::derivation;
use crate::error::Preempted;

/// What is left to do when a slot is emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Aftermath(Option<u16>);

impl Kernel {
    /// Deletes what is in a slot. When it was not interrupted the slot is empty.
    pub(crate) fn delete(&self, slot: Ref<Slot>) -> Result<(), Preempted> {
        let (_, aftermath) = self.finalise_slot(slot, true)?;
        self.empty(slot, aftermath);
        Ok(())
    }

    /// Deletes a capability whose deletion is short: no object with slots goes with it.
    pub(crate) fn delete_one(&self, slot: Ref<Slot>) {
        if !slot.is_empty() {
            let capability = slot.capability.get();
            if matches!(capability, Capability::Reply { .. }) {
                return derivation::remove(slot);
            }
            let is_final = derivation::is_final(slot);
            let (_, aftermath) = self.finalise(capability, is_final);
            self.empty(slot, aftermath);
        }
    }

    /// Deletes everything that was derived from what is in a slot.
    pub(crate) fn revoke(&self, slot: Ref<Slot>) -> Result<(), Preempted> {
        while let Some(next) = slot.next.get() {
            if slot.is_empty() || !derivation::is_parent(&slot, &next) {
                break;
            }
            self.delete(next)?;
            self.preemption_point()?;
        }
        Ok(())
    }

    fn empty(&self, slot: Ref<Slot>, aftermath: Aftermath) {
        if !slot.is_empty() {
            derivation::remove(slot);
        }
        if let Aftermath(Some(irq)) = aftermath {
            self.release_irq(irq);
        }
    }

    /// Makes a slot ready to be emptied; says whether it is. With `is_exposed` false it may come back while a zombie is
    /// in the slot that has to be dealt with where it was swapped to.
    fn finalise_slot(&self, slot: Ref<Slot>, is_exposed: bool) -> Result<(bool, Aftermath), Preempted> {
        loop {
            let capability = slot.capability.get();
            if slot.is_empty() {
                return Ok((true, Aftermath(None)));
            }
            let is_final = derivation::is_final(slot);
            let (remainder, aftermath) = self.finalise(capability, is_final);
            let Capability::Zombie { slots, count, .. } = remainder else {
                return Ok((true, aftermath));
            };
            let is_cyclic = slots == slot;
            if count == 0 || (count == 1 && is_cyclic) {
                return Ok((true, Aftermath(None)));
            }
            slot.capability.set(remainder);
            if !is_exposed && is_cyclic {
                return Ok((false, Aftermath(None)));
            }
            self.reduce_zombie(slot, is_exposed)?;
            self.preemption_point()?;
        }
    }

    /// Empties one slot of a zombie, or moves another zombie into its place.
    fn reduce_zombie(&self, slot: Ref<Slot>, is_exposed: bool) -> Result<(), Preempted> {
        let Capability::Zombie { slots, count, kind } = slot.capability.get() else { return Ok(()) };
        if !is_exposed {
            // This zombie is in a slot of another one. It moves into its own first slot, and what was there comes here, to
            // be deleted by the same loop.
            derivation::swap(slots.capability.get(), slots, slot.capability.get(), slot);
            return Ok(());
        }
        let last = slots.slot(count - 1);
        let (emptied, aftermath) = self.finalise_slot(last, false)?;
        if emptied {
            self.empty(last, aftermath);
        }
        if let Capability::Zombie { slots: now, count: left, kind: same } = slot.capability.get()
            && now == slots
            && left == count
            && same == kind
            && last.is_empty()
        {
            slot.capability.set(Capability::Zombie { slots, count: count - 1, kind });
        }
        Ok(())
    }

    /// Takes an object out of everything that refers to it, as far as this capability is concerned; says what the capability is now.
    fn finalise(&self, capability: Capability, is_final: bool) -> (Capability, Aftermath) {
        let gone = (Capability::Null, Aftermath(None));
        if let Capability::Notification { page: Some(page), .. } = capability {
            self.revoke_sender(page);
        }
        match capability {
            Capability::Endpoint { endpoint, .. } if is_final => self.cancel_all_messages(endpoint),
            Capability::Notification { notification, .. } if is_final => {
                self.unbind_notification(notification);
                self.cancel_all_signals(notification);
            }
            Capability::CNode { slots, radix, .. } if is_final => {
                return (
                    Capability::Zombie { slots, count: 1 << radix, kind: Zombie::CNode { radix } },
                    Aftermath(None),
                );
            }
            Capability::Thread { tcb } if is_final => {
                self.forget_handler(tcb);
                // In this order: what was pending in its interrupt file must not wake it.
                self.suspend(tcb);
                self.unbind_thread(tcb);
                let slots = tcb.own_slot(0);
                return (Capability::Zombie { slots, count: TCB_SLOTS as u64, kind: Zombie::Tcb }, Aftermath(None));
            }
            Capability::Zombie { .. } => return (capability, Aftermath(None)),
            Capability::IrqHandler { irq } if is_final => {
                self.stop_irq(irq);
                return (Capability::Null, Aftermath(Some(irq)));
            }
            Capability::Frame { base, size, mapping: Some(mapping), .. } => self.unmap_frame(base, size, mapping),
            Capability::PageTable { table, mapping: Some(mapping) } => {
                self.begin_space_epoch();
                if is_final {
                    self.forget_table(table, mapping);
                }
            }
            Capability::AsidPool { pool, base } if is_final => self.delete_asid_pool(pool, base),
            _ => {}
        }
        gone
    }

    /// Whether deleting what is in a slot could take long, so that it cannot be replaced as part of something else.
    pub(crate) fn is_long_deletion(&self, slot: Ref<Slot>) -> bool {
        match slot.capability.get() {
            Capability::Thread { .. } | Capability::Zombie { .. } | Capability::CNode { .. } => {
                derivation::is_final(slot)
            }
            _ => false,
        }
    }

    /// Stops a thread, whatever it does.
    pub(crate) fn suspend(&self, thread: Ref<Tcb>) {
        self.stop_elsewhere(thread);
        self.cancel_waiting(thread);
        if thread.state() == ThreadState::Running {
            // It may stand behind a system call; it goes on from there.
            thread.fault_pc.set(thread.pc().get());
        }
        self.set_state(thread, ThreadState::Inactive);
        self.dequeue(thread);
        self.deactivate(thread);
    }

    /// Lets a thread run that does not.
    pub(crate) fn resume(&self, thread: Ref<Tcb>) {
        if !thread.state().is_runnable() {
            self.cancel_waiting(thread);
            self.prepare_reply(thread);
            self.set_state(thread, ThreadState::Restart);
            self.possibly_switch_to(thread);
            self.wake_handler(thread);
        }
    }

    /// Gives a thread its own reply capability, if it has none.
    pub(crate) fn prepare_reply(&self, thread: Ref<Tcb>) {
        let slot = thread.own_slot(objects::own::REPLY);
        if slot.is_empty() {
            slot.capability.set(Capability::Reply { caller: thread, master: true, grant: true });
            slot.previous.set(None);
            slot.next.set(None);
            slot.set_flags(true, true);
        }
    }
}
