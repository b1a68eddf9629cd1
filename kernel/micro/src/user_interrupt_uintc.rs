//! Notifications as user interrupts without the kernel: armed threads, and instructions instead of signals.
//!
//! On machines with the N extension and the controller UINTC, a thread that registers for user interrupts and names
//! hints is *armed* from then on: it runs in user mode as before, and takes software interrupts itself. The controller
//! has a *slot* for it, with a pending bit for each hint. A sender that has asked for a sender page
//! ([`MapSender`](abi_sel4::Invocation::PageTableMapSender)) gets an index with it, and sends by `uipi_send` with this
//! index instead of a store. Authority, limits and revocation are those of sender pages (`sender_page`); a store to
//! the page works too, and always enters the kernel.
//!
//! # Sender tables
//!
//! The machine looks an index up in a *sender table*, whose entries name a slot and a pending bit. Each hart has one
//! table, of one page, which no program can reach. It has entries of one address space at a time, and a hart empties it
//! before it arms a thread of another one. Entries become valid one by one: a send through another one is an illegal
//! instruction, and the kernel then sends in the sender's name, and makes the entry valid for the next sends
//! ([`complete_refused`](Kernel::complete_refused)); so no other thread can make a send trap again and again. A thread
//! is armed, too, from its first refused send on that could have an entry. An index without a sender sends nothing, as
//! `NBSend` through an empty slot does nothing; so the capability may be deleted between a sender's last look and its
//! instruction.
//!
//! An entry is exact: a sender can make no other bit pending than that of its badge.
//!
//! # SLOT-RUNNABLE
//!
//! Only a runnable thread has a slot. The controller interrupts nobody for a slot whose thread is on no hart, and a
//! thread that waits must be woken. So a thread gives its slot up before it waits or stops: its entries are cleared in
//! all tables, and the vectors that have come become a signal. A runnable thread that is preempted keeps its slot,
//! which is not active then, and finds in it what has come.
//!
//! # ARMED-IN-USER-MODE
//!
//! Registers, slot and table of a thread have an effect in user mode only: a hart in the kernel sends nothing and takes
//! nothing. A hart loads them, under the lock, just before it leaves the kernel for another thread than before. At the
//! trap it saves the registers, before it says that it is in the kernel (`Hart::place`), and they stay in the hart. If
//! nothing has happened to the thread, the hart enters it again as it is; otherwise it takes them away before it does
//! anything else. So a hart that stops a thread of another hart finds all registers in memory, and may change them. On
//! a machine of one hart no other hart looks, and a call that cannot change registers of its own thread saves them only
//! if it does not go on.
//!
//! A hart that clears an entry stops the harts whose tables had it and which are in user mode: an interrupt comes
//! between two instructions, so every send has reached its slot then, or will be refused. A slot that is emptied after
//! that is empty.
//!
//! # Domains
//!
//! A send needs a capability, and does no more than a signal through it: a receiver of another domain that is ready
//! finds the vector in its slot when its domain's time has come. A sender can see whether its receiver waits, by the
//! time of a send, as it can by the time of a signal. Slots are taken from all threads of the machine together, so
//! threads of one domain that take all of them make the sends of another one slower, and no different.
//!
//! # Floods
//!
//! A flood of sends concerns only the receiver's own handler, as a flood of stores does.

use core::sync::atomic::Ordering;

use abi_sel4::call::number;
use drivers::uintc::{self, Slot, Uintc};
use hal_api::{RefusedUipi, Trap, UserLevel as _};
use objects::{OwnInterrupts, Ref, Space, Tcb, arm, enter_armed, forget_armed, save_armed};
use platform::{Machine, Mapped};

use crate::hart::IN_USER;
use crate::kernel::Kernel;
use crate::node::{MAXIMUM_NODES, Next};
use crate::smp::Shared;
use crate::state::{SENDERS_OF_A_SPACE, Sender};

/// Size of a frame, as a power of two.
const FRAME_BITS: u32 = 12;

impl Kernel {
    /// Takes over the machine's controller, at boot.
    pub(crate) fn start_slots(&self, controller: Option<Uintc<Mapped>>) {
        self.interrupt_slots.controller.set(controller);
        self.sending_instructions.set(controller.is_some().into());
    }

    fn controller(&self) -> Option<Uintc<Mapped>> {
        self.interrupt_slots.controller.get()
    }

    /// Prepares this hart to enter an armed thread, and arms it.
    pub(crate) fn enter_armed(&self, thread: Ref<Tcb>, space: Space) -> Next {
        let node = self.node();
        let interrupts = &thread.interrupts;
        if interrupts.hints.get() != 0 {
            if interrupts.file_or_slot.get() == 0
                && let Some(slot) = self.interrupt_slots.take()
            {
                interrupts.file_or_slot.set(u64::from(slot.number()) + 1);
            }
            if interrupts.unmasked_before.replace(node.next_tick.get()) != node.next_tick.get() {
                thread.unmask_own_interrupts();
            }
        }
        self.enter_space(thread, space);
        node.sender_table.begin(space.asid());
        node.is_armed.set(true);
        self.arm(thread);
        self.note_user();
        Next::RunArmed(thread)
    }

    /// Loads the registers and rights of the armed thread that this hart is about to enter (ARMED-IN-USER-MODE).
    fn arm(&self, thread: Ref<Tcb>) {
        let node = self.node();
        let slot = thread.slot();
        arm::<Machine>(thread, slot, node.sender_table.frame.get() >> FRAME_BITS);
        if let (Some(controller), Some(slot)) = (self.controller(), slot.and_then(Slot::new)) {
            // A vector that is pending interrupts the thread at once.
            controller.activate(slot, node.hart_id.get());
        }
    }

    /// Lets the slot of a thread that leaves its hart interrupt no hart.
    pub(crate) fn rest_slot(&self, thread: Ref<Tcb>) {
        if let (Some(controller), Some(slot)) = (self.controller(), thread.slot().and_then(Slot::new)) {
            controller.deactivate(slot);
        }
    }

    /// Takes a thread's slot away; returns the signals that were pending in it.
    pub(crate) fn empty_slot(&self, thread: Ref<Tcb>, slot: u16) -> u64 {
        self.stop_elsewhere(thread);
        self.node().prepare_anew(thread);
        thread.interrupts.file_or_slot.set(0);
        let (Some(controller), Some(slot)) = (self.controller(), Slot::new(slot)) else { return 0 };
        controller.deactivate(slot);
        for sender in self.senders.iter().filter(|sender| sender.is_valid.get()) {
            if sender.notification.get() == thread.bound.get() {
                self.unmap_sender(sender);
            }
        }
        let pending = controller.take(slot);
        self.interrupt_slots.give_back(slot);
        pending & thread.interrupts.hints.get()
    }

    /// Clears a sender's entry in all tables. When this returns, every send through it has reached the slot.
    pub(crate) fn clear_entries(&self, sender: &Sender) {
        let Some(mapping) = sender.mapping.get() else { return };
        for (index, node) in self.nodes.iter().enumerate().take(self.node_count.get()) {
            if node.sender_table.is_of(mapping.asid) && node.sender_table.replace(sender.index.get(), 0) != 0 {
                self.stop_sending(index);
            }
        }
    }

    /// Waits until a hart has executed every send that has read its table. It enters the kernel for that.
    fn stop_sending(&self, index: usize) {
        let is_in_user = || self.harts.each[index].place.load(Ordering::Acquire) == IN_USER;
        if index != self.here() && self.nodes[index].is_armed.get() && is_in_user() {
            self.stop_node(index);
        }
    }

    /// Empties the tables of address spaces that are deleted, and which the harts leave next.
    pub(crate) fn forget_sender_tables(&self, are_meant: impl Fn(u16) -> bool) {
        for (index, node) in self.nodes.iter().enumerate().take(self.node_count.get()) {
            if are_meant(node.sender_table.asid.get()) {
                node.sender_table.begin(0);
                self.stop_sending(index);
            }
        }
    }

    /// Completes an instruction, of these bits, that the machine has refused, if it sends a user interrupt or takes
    /// pending ones. Returns whether the thread continues.
    #[cold]
    #[inline(never)]
    pub(crate) fn complete_refused(&self, thread: Ref<Tcb>, bits: u64) -> bool {
        if !self.interrupt_slots.exist() {
            return false;
        }
        match (Trap::IllegalInstruction { bits }).refused_uipi() {
            Some(RefusedUipi::Send { index }) => {
                let index = if index == 0 { 0 } else { thread.register_at(index).get() };
                (1..=SENDERS_OF_A_SPACE as u64).contains(&index) && self.send_refused(thread, index as u16)
            }
            // The thread lost its slot, perhaps in its handler.
            Some(own) if thread.interrupts.own() == Some(OwnInterrupts::Armed) && thread.slot().is_none() => {
                self.do_without_slot(thread, own);
                true
            }
            _ => false,
        }
    }

    /// Does for a thread what an instruction would do with its slot, which it has not. Nothing is pending; vectors that
    /// it adds become a signal; and the kernel makes a slot active whenever the thread gets one.
    fn do_without_slot(&self, thread: Ref<Tcb>, instruction: RefusedUipi) {
        skip(thread);
        match instruction {
            RefusedUipi::Take { destination } if destination != 0 => thread.register_at(destination).set(0),
            RefusedUipi::Add { vectors } if vectors != 0 => {
                let signals = thread.register_at(vectors).get() & thread.interrupts.hints.get();
                if let Some(notification) = thread.bound.get()
                    && signals != 0
                {
                    self.signal(notification, signals);
                }
            }
            _ => {}
        }
    }

    /// Sends for a thread whose send was refused: to the receiver's slot, and makes the entry valid for its next sends;
    /// or, if the receiver has none, by a signal. Returns `false` if the thread has no address space.
    fn send_refused(&self, thread: Ref<Tcb>, index: u16) -> bool {
        let Some(space) = self.address_space(thread) else { return false };
        let sender = self.senders.of_index(space.asid(), index);
        let Some((sender, notification)) = sender.and_then(|sender| Some((sender, sender.notification.get()?))) else {
            skip(thread);
            return true;
        };
        skip(thread);
        match (self.controller(), Kernel::target_of(sender)) {
            (Some(controller), Some((slot, vector))) => {
                self.make_valid(thread, sender, space.asid());
                controller.send(slot, vector);
            }
            _ => self.signal(notification, sender.badge.get()),
        }
        true
    }

    /// Returns the slot and the vector to which a sender sends, if its receiver has a slot.
    fn target_of(sender: &Sender) -> Option<(Slot, u8)> {
        let badge = sender.badge.get();
        let receiver = sender.notification.get()?.bound.get()?;
        let slot = receiver.slot().filter(|_| receiver.interrupts.hints.get() & badge != 0)?;
        Some((Slot::new(slot)?, badge.trailing_zeros() as u8))
    }

    /// Makes a sender's entry valid in the tables of all harts that have entries of its address space, if its receiver
    /// has a slot.
    pub(crate) fn make_entries(&self, sender: &Sender) {
        let entry = Kernel::target_of(sender).and_then(|(slot, vector)| uintc::entry(slot, vector));
        let (Some(entry), Some(mapping)) = (entry, sender.mapping.get()) else { return };
        sender.is_valid.set(true);
        for node in &self.nodes[..self.node_count.get()] {
            if node.sender_table.is_of(mapping.asid) {
                node.sender_table.replace(sender.index.get(), entry);
            }
        }
    }

    /// Makes the entry of a sender whose receiver has a slot valid, and arms the thread that sends.
    fn make_valid(&self, thread: Ref<Tcb>, sender: &Sender, asid: u16) {
        if !thread.interrupts.has_own() {
            thread.give_own_registers(OwnInterrupts::Armed);
            thread.forget_space();
            self.node().prepare_anew(thread);
        }
        self.node().sender_table.begin(asid);
        self.make_entries(sender);
    }

    /// Moves the pending vectors of the thread that runs here to its notification's word; returns whether there were
    /// any.
    fn collect_slot(&self, thread: Ref<Tcb>) -> bool {
        // An active slot with vectors has raised the interrupt. A handler that has lowered it takes the vectors next. A
        // slot that its thread has made inactive keeps them until it is active again, as it does for the handler; if
        // the thread waits, they are taken with the slot.
        if !Machine::is_user_interrupt_pending() {
            return false;
        }
        let (Some(controller), Some(slot)) = (self.controller(), thread.slot().and_then(Slot::new)) else {
            return false;
        };
        // In this order: a vector that comes later raises the interrupt again.
        Machine::lower_user_interrupt();
        let signals = controller.take(slot) & thread.interrupts.hints.get();
        let notification = thread.bound.get().filter(|_| signals != 0);
        if let Some(notification) = notification {
            notification.add(signals);
        }
        notification.is_some()
    }

    /// Serves the trap of an armed thread; returns whether the hart can enter the thread again as it is.
    pub(crate) fn serve_armed(&self, thread: Ref<Tcb>, trap: Trap) -> bool {
        let mut has_collected = false;
        if trap != Trap::Interrupt {
            thread.interrupts.entries.set(thread.interrupts.entries.get() + 1);
        }
        let mut is_saved = MAXIMUM_NODES > 1;
        let receives = trap == Trap::SystemCall
            && matches!(thread.register::<17>().get(), number::Recv | number::NBRecv | number::ReplyRecv);
        if receives {
            has_collected = self.collect_slot(thread);
        } else if !is_saved {
            save_armed::<Machine>(thread);
            is_saved = true;
        }
        if trap == Trap::SystemCall {
            self.handle_call(thread);
        } else {
            self.handle_other(thread, trap);
        }
        let node = self.node();
        if has_collected && node.current.get() == Some(thread) && thread.state().is_runnable() {
            // The call was about another object, and has not taken the signals that its handler will not see now.
            self.interrupt_if_signalled(thread);
        }
        // After a tick its interrupts may have to be unmasked.
        if trap != Trap::Interrupt && self.goes_on(thread) {
            return true;
        }
        if !is_saved {
            save_armed::<Machine>(thread);
        }
        node.is_armed.set(false);
        if node.entered.get() == Some(thread) {
            // It is armed again before it is entered.
            node.entered.set(None);
        }
        if thread.state().is_runnable() {
            self.rest_slot(thread);
        } else {
            // SLOT-RUNNABLE
            self.deactivate(thread);
        }
        forget_armed::<Machine>();
        false
    }
}

/// Makes a thread continue behind its instruction, which has four bytes.
fn skip(thread: Ref<Tcb>) {
    thread.pc().set(thread.pc().get().wrapping_add(4));
}

/// Runs an armed thread until another thread runs, or it must be prepared anew.
#[cold]
#[inline(never)]
pub fn run(shared: &Shared, thread: Ref<Tcb>, hart: usize) -> Next {
    loop {
        let trap = enter_armed::<Machine>(thread);
        if MAXIMUM_NODES > 1 {
            save_armed::<Machine>(thread);
        }
        let trap = shared.note_trap(trap, hart);
        let kernel = shared.enter(hart);
        // Another hart may have stopped the thread, and then even deleted it.
        if MAXIMUM_NODES > 1 && kernel.node().current.get().is_none() {
            forget_armed::<Machine>();
            kernel.serve_interrupts();
            return kernel.leave_and_poke();
        }
        if !kernel.serve_armed(thread, trap) {
            return kernel.leave_and_poke();
        }
        kernel.poke_others();
        kernel.check_after_entry();
        kernel.note_user();
    }
}
