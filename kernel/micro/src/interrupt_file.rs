//! Notifications as user interrupts without the kernel: virtualised threads, and stores instead of signals.
//!
//! On machines with UINTC, threads take their interrupts in user mode instead (`interrupt_slot`); this file has what
//! both ways share: the senders. On machines with guest interrupt files (hypervisor extension, IMSIC), a thread that
//! registers for user interrupts and names *hints*, bits of badges, runs virtualised from then on: with supervisor
//! registers of its own, and with a guest interrupt file of its hart, in which a store makes one of these bits pending.
//! The owner of a capability with the write right and one of the hints as badge can map the file's page, the *sender
//! page*, into an address space ([`MapSender`](abi_sel4::Invocation::PageTableMapSender)). A signal is then a store to
//! that page, and neither side enters the kernel.
//!
//! # Authority of senders
//!
//! A sender page belongs to the capability with which it was made, as the mapping of a frame does: the capability
//! contains the number of a [`Sender`]; a move keeps the number, and a copy has none. Deleting the capability unmaps
//! the page on every hart before any other operation. Hardware does not check the identity that a store carries, so a
//! sender can store any identity. Therefore only the receiver's hints are enabled in its file and taken out of it, and
//! a capability with another badge gets no page.
//!
//! # Limits on sender pages
//!
//! The kernel's data about sender pages are in a table of fixed size. So an address space may have at most
//! [`SENDERS_OF_A_SPACE`] of them, and a sender without a page signals through the kernel. A program with an ASID pool,
//! which can create address spaces, has such a share for each, as it has a share of the ASIDs, which are a machine-wide
//! resource too. Records in the sender's memory would have no such limit, but would have to be found from a receiver
//! that loses its file: by a walk over all capabilities of a notification, of which any owner of one can make as many
//! as fit into memory.
//!
//! # Page faults on sender pages
//!
//! On a store fault at the address of a sender page, the kernel maps the page, or signals on behalf of the store and
//! continues behind it; the store must be an instruction of four bytes. So senders need not check whether the receiver
//! has a file: it has none while it is suspended or while all files of the hart are in use, and another one after it
//! has moved to another hart.
//!
//! The capability of a sender page can be deleted at any moment, also between a sender's last check and its store, and
//! the sender's fault handler may be gone with it. So a store at the address of a revoked page has no effect, like
//! `NBSend` on an empty slot; otherwise each program would need a fault handler to outlive another program. The entry
//! in the sender's own page table records the revocation, which costs no memory, until another page is mapped there. A
//! program that reuses the address must therefore map the new page before the first store; its fault handler is not
//! called for it. A program that unmaps the page and keeps the capability gets the fault.
//!
//! # Pending signals
//!
//! Signals that are pending in a file count as signals in the notification's word: the kernel moves them there before
//! the receiver reads the word, and when the file is taken away. While the receiver waits for the notification the file
//! is *watched*: it interrupts the kernel, which signals the notification. The file of a thread that does not wait is
//! not watched, so that a store to it costs only its thread time.
//!
//! # Entering and leaving
//!
//! A virtualised thread's address space is never cached (SPACE-EPOCH), so the fastpath does not switch to it. Before a
//! hart enters such a thread it *prepares* that: it points the root of its second stage at the thread's own root,
//! flushes its cached translations of that stage, finds a file, and loads the supervisor registers, unless it still
//! holds them. When the thread traps, the registers are saved, but stay in the hart.
//!
//! Most kernel entries of a thread end with the same thread, and nothing has happened to it: it polled, signalled, or
//! sent a message. Then the hart enters it again without a step of the preparation (`Kernel::serve_virtualised`). The
//! conditions are those under which an ordinary thread continues, and:
//!
//! * The kernel entry was a system call that cannot change translations: no fault, which may map a sender page, and no
//!   interrupt, which may be a tick. A message with a label may be an invocation, and counts as a change.
//! * No signal is to be delivered by the kernel (`is_virtualised` of the node is still set), and the hart has not left
//!   the address space (`asid` is).
//!
//! Everything else is either done by other harts, which stop the thread first, or by this hart for another thread,
//! which it enters in between. So the thread's file, its registers and its root are those that were prepared. A hart
//! that changes an address space makes other harts that run a virtualised thread in it enter the kernel, instead of
//! sending them the translations to flush; they prepare the thread anew.
//!
//! # Floods of stores
//!
//! A flood of stores concerns only the receiver's own handler, which masks its interrupts after a number of them. When
//! the thread runs again after a tick of its hart, the kernel unmasks them.

use abi_sel4::call::number;
use abi_sel4::configuration::USER_TOP;
use abi_sel4::object::PAGE_BITS;
use abi_sel4::{InvocationError, MessageInfo, Rights};
use hal_api::{Trap, Virtualisation as _};
use objects::{
    Capability, Mapping, Notification, Ref, Slot, Space, Tcb, ThreadState, enter_virtualised, own, prepare_virtualised,
};
use platform::Machine;

use crate::invocation::Arguments;
use crate::kernel::Kernel;
use crate::machine;
use crate::node::{Decision, FILES, MAXIMUM_NODES, Next};
use crate::smp::Shared;
use crate::state::{SENDERS_OF_A_SPACE, Sender};

/// Bits that can be hints: bit `n` has identity `n + 1`, and 63 is the last identity in a word.
pub const HINTS: u64 = !0 >> 1;

/// Mask of the offset in a page.
const OFFSET: u64 = (1 << PAGE_BITS) - 1;

/// A decoded invocation that maps or unmaps a sender page.
#[derive(Clone, Copy, Debug)]
pub struct NewSender {
    source: Ref<Slot>,
    mapping: Option<Mapping>,
}

/// Returns whether a thread waits for its bound notification.
fn waits(thread: Ref<Tcb>) -> bool {
    match thread.state() {
        ThreadState::Receiving => true,
        ThreadState::AwaitingSignal => thread.waits_for.get() == thread.bound.get(),
        _ => false,
    }
}

impl Kernel {
    /// Decodes an invocation of an address space that maps or unmaps a sender page.
    #[cold]
    #[inline(never)]
    pub(crate) fn decode_sender(&self, space: Ref<Slot>, arguments: &Arguments) -> Result<NewSender, InvocationError> {
        let [address] = arguments.at_least::<1>()?;
        let source = arguments.capability(0)?;
        let Capability::Notification { notification, badge, rights, page } = source.capability.get() else {
            return Err(InvocationError::InvalidCapability(1));
        };
        if !rights.contains(Rights::WRITE) {
            return Err(InvocationError::InvalidCapability(1));
        }
        if address == 0 {
            return Ok(NewSender { source, mapping: None });
        }
        let held = page.and_then(|page| self.mapping_of_sender(page)).filter(|held| held.address == address);
        let is_held_here =
            |(root, asid)| held.is_some_and(|held| held.asid == asid) && self.root_of(asid) == Some(root);
        if space.capability.mapped_table().is_some_and(is_held_here) {
            // The page is mapped there already; the invocation is idempotent.
            return Ok(NewSender { source, mapping: held });
        }
        let mapping = self.decode_page(space, address)?;
        let receiver = notification.bound.get().ok_or(InvocationError::IllegalOperation)?;
        if !badge.is_power_of_two() || receiver.interrupts.hints.get() & badge == 0 {
            return Err(InvocationError::IllegalOperation);
        }
        let mut held = 0;
        let mut is_taken = page.is_some() || self.senders.is_full();
        for other in self.senders.iter().filter_map(|sender| sender.mapping.get()) {
            held += usize::from(other.asid == mapping.asid);
            is_taken |= other == mapping;
        }
        if is_taken || held >= SENDERS_OF_A_SPACE {
            return Err(InvocationError::DeleteFirst);
        }
        Ok(NewSender { source, mapping: Some(mapping) })
    }

    /// Performs the decoded invocation. Returns the index by which the address space sends; 0 if it sends by stores.
    #[cold]
    #[inline(never)]
    pub(crate) fn set_sender(&self, NewSender { source, mapping }: NewSender) -> u16 {
        let Capability::Notification { notification, badge, rights, page } = source.capability.get() else { return 0 };
        if let Some(page) = page {
            let held = self.mapping_of_sender(page);
            if mapping.is_some() && mapping == held {
                return self.index_of_sender(page);
            }
            self.forget_sender(page);
            if let Some(held) = held {
                // Remove the mark of an earlier revoked page.
                self.forget_revoked_sender(held);
            }
        }
        let page = mapping.and_then(|mapping| self.senders.take(notification, badge, mapping));
        source.capability.set(Capability::Notification { notification, badge, rights, page });
        if let Some(sender) = page.and_then(|page| self.senders.get(page)) {
            if self.interrupt_slots.exist() {
                self.make_entries(sender);
            } else {
                self.map_sender(sender);
            }
        }
        page.map_or(0, |page| self.index_of_sender(page))
    }

    /// Returns the index by which an address space sends with a capability's sender; 0 on machines without UINTC.
    fn index_of_sender(&self, page: u8) -> u16 {
        let sender = self.senders.get(page).filter(|_| self.interrupt_slots.exist());
        sender.map_or(0, |sender| sender.index.get())
    }

    /// Revokes the sender page of a capability that is deleted: unmaps it on every hart. Stores to it have no effect
    /// from now on.
    #[cold]
    #[inline(never)]
    pub(crate) fn revoke_sender(&self, page: u8) {
        let mapping = self.mapping_of_sender(page);
        self.forget_sender(page);
        if let Some(mapping) = mapping {
            self.note_revoked_sender(mapping);
        }
    }

    fn mapping_of_sender(&self, page: u8) -> Option<Mapping> {
        self.senders.get(page)?.mapping.get()
    }

    /// Unmaps a capability's sender page on every hart and frees its entry.
    fn forget_sender(&self, page: u8) {
        if let Some(sender) = self.senders.get(page) {
            self.unmap_sender(sender);
            self.senders.give_back(sender);
        }
    }

    /// Maps a sender page, if the receiver has a file; returns whether it is mapped.
    fn map_sender(&self, sender: &Sender) -> bool {
        let (Some(notification), Some(mapping)) = (sender.notification.get(), sender.mapping.get()) else {
            return false;
        };
        if self.interrupt_slots.exist() {
            return false;
        }
        let Some(receiver) = notification.bound.get() else { return false };
        let interrupts = &receiver.interrupts;
        if interrupts.hints.get() & sender.badge.get() == 0 || interrupts.file.get() == 0 {
            return false;
        }
        let Some(page) = machine::guest_page(self.node_of(receiver), interrupts.file.get() as usize) else {
            return false;
        };
        let is_mapped = self.map_sender_page(page, mapping);
        if is_mapped {
            sender.physical.set(page);
        }
        is_mapped
    }

    pub(crate) fn unmap_sender(&self, sender: &Sender) {
        if sender.is_valid.take() {
            self.clear_entries(sender);
        }
        let physical = sender.physical.take();
        if let Some(mapping) = sender.mapping.get()
            && physical != 0
        {
            self.unmap_frame(physical, objects::FrameSize::Small, mapping);
        }
    }

    /// Removes the mappings of sender pages in deleted address spaces.
    pub(crate) fn forget_senders_in(&self, are_meant: impl Fn(u16) -> bool) {
        for sender in self.senders.iter().filter(|_| self.senders.in_use() > 0) {
            if sender.mapping.get().is_some_and(|mapping| are_meant(mapping.asid)) {
                sender.mapping.set(None);
                sender.physical.set(0);
                sender.is_valid.set(false);
            }
        }
        self.forget_sender_tables(are_meant);
    }

    /// For the consistency checker: the physical address and mapping of a capability's sender page, if it is mapped.
    /// Asserts that the page belongs to the capability.
    pub(crate) fn sender_page(&self, page: u8, notification: Ref<Notification>, badge: u64) -> Option<(u64, Mapping)> {
        let sender = self.senders.get(page).expect("capabilities have numbers of pages");
        let belongs = sender.notification.get() == Some(notification) && sender.badge.get() == badge;
        assert!(belongs, "a capability has a page for sending that is another's");
        let physical = sender.physical.get();
        sender.mapping.get().filter(|_| physical != 0).map(|mapping| (physical, mapping))
    }

    /// Handles a store fault. At the address of a sender page, maps the page, or signals on behalf of the store;
    /// returns whether the thread continues.
    #[cold]
    #[inline(never)]
    pub(crate) fn store_without_page(&self, thread: Ref<Tcb>, address: u64) -> bool {
        if !self.senders.had_any() || address >= USER_TOP {
            return false;
        }
        let Some(space) = self.address_space(thread) else { return false };
        let mapping = Mapping { asid: space.asid(), address: address & !OFFSET };
        let go_on_behind = || thread.pc().set(thread.pc().get().wrapping_add(4));
        let Some(sender) = self.senders.iter().find(|sender| sender.mapping.get() == Some(mapping)) else {
            let is_revoked = address & OFFSET == 0 && self.is_revoked_sender(mapping);
            if is_revoked {
                go_on_behind();
            }
            return is_revoked;
        };
        let Some(notification) = sender.notification.get() else { return false };
        // Another hart may have mapped the page in the meantime.
        let physical = sender.physical.get();
        if physical != 0 && self.page_place(physical, objects::FrameSize::Small, mapping).is_some() {
            self.flush_page(mapping);
            return true;
        }
        if !self.is_unmapped_page(mapping) {
            return false;
        }
        if self.map_sender(sender) {
            return true;
        }
        if address & OFFSET != 0 {
            return false;
        }
        go_on_behind();
        self.signal(notification, sender.badge.get());
        true
    }

    /// Assigns a file to a virtualised thread that is about to be entered on this hart, if it has hints and a file is
    /// free.
    fn take_file(&self, thread: Ref<Tcb>) {
        let interrupts = &thread.interrupts;
        if interrupts.hints.get() == 0 || interrupts.file.get() != 0 {
            return;
        }
        let files = &self.node().files;
        let count = FILES.min(machine::guest_files() + 1);
        if let Some(file) = (1..count).find(|&file| files[file].get().is_none()) {
            files[file].set(Some(thread));
            interrupts.file.set(file as u64);
            Machine::prepare_guest_file(file, interrupts.hints.get() << 1);
        }
    }

    /// Takes a thread's file away, if it has one, so that no store reaches it any more; returns the signals that were
    /// pending in it.
    #[inline]
    pub(crate) fn give_up_file(&self, thread: Ref<Tcb>) -> u64 {
        match thread.interrupts.file.get() {
            0 => 0,
            file => self.empty_file_or_slot(thread, file as usize),
        }
    }

    #[cold]
    #[inline(never)]
    fn empty_file_or_slot(&self, thread: Ref<Tcb>, file: usize) -> u64 {
        match thread.slot() {
            Some(slot) => self.empty_slot(thread, slot),
            None => self.empty_file(thread, file),
        }
    }

    fn empty_file(&self, thread: Ref<Tcb>, file: usize) -> u64 {
        self.stop_elsewhere(thread);
        self.node().prepare_anew(thread);
        thread.interrupts.file.set(0);
        for sender in self.senders.iter() {
            if sender.notification.get() == thread.bound.get() && sender.physical.get() != 0 {
                self.unmap_sender(sender);
            }
        }
        // The file may be assigned to another thread at once.
        self.flush_deferred();
        let node = self.node_of(thread);
        let pending = self.drain_file(node, file);
        self.nodes[node].files[file].set(None);
        pending >> 1 & thread.interrupts.hints.get()
    }

    /// Takes a thread's file away, and signals its pending bits.
    #[inline]
    pub(crate) fn deactivate(&self, thread: Ref<Tcb>) {
        let signals = self.give_up_file(thread);
        if let Some(notification) = thread.bound.get()
            && signals != 0
        {
            self.signal(notification, signals);
        }
    }

    /// Moves the pending signals of the file of the thread that runs here to its notification's word; returns whether
    /// there were any.
    #[inline(always)]
    fn collect(&self, thread: Ref<Tcb>, file: usize) -> bool {
        if file == 0 {
            return false;
        }
        let signals = Machine::take_guest_file(file) >> 1 & thread.interrupts.hints.get();
        if let Some(notification) = thread.bound.get()
            && signals != 0
        {
            notification.add(signals);
            return true;
        }
        false
    }

    /// Watches exactly the files of this hart's threads that wait for their notification.
    #[cold]
    #[inline(never)]
    fn watch_files(&self) {
        let mut watched = 0;
        for (file, thread) in self.node().files.iter().enumerate() {
            if let Some(thread) = thread.get().filter(|&thread| waits(thread)) {
                // Other identities, which its program may have enabled, would stay pending for ever.
                Machine::enable_guest_file(file, thread.interrupts.hints.get() << 1);
                watched |= 1 << file;
            }
        }
        self.node().watched.set(watched);
        Machine::watch_guest_files(watched);
    }

    /// Signals the notifications whose bits are pending in watched files of this hart.
    #[cold]
    #[inline(never)]
    pub(crate) fn serve_files(&self) {
        let waiting = Machine::pending_guest_files();
        for (file, thread) in self.node().files.iter().enumerate() {
            if waiting >> file & 1 != 0
                && let Some(thread) = thread.get()
                && waits(thread)
                && let Some(notification) = thread.bound.get()
            {
                let signals = Machine::take_guest_file(file) >> 1 & thread.interrupts.hints.get();
                if signals != 0 {
                    self.signal(notification, signals);
                }
            }
        }
        self.watch_files();
    }

    /// Prepares this hart to enter a virtualised thread.
    pub(crate) fn enter_virtualised(&self, thread: Ref<Tcb>, space: Space) -> Next {
        let node = self.node();
        self.take_file(thread);
        if node.watched.get() >> thread.interrupts.file.get() & 1 != 0 {
            // The thread, or the file's last owner, waited for its notification.
            self.watch_files();
        }
        if thread.interrupts.unmasked_before.replace(node.next_tick.get()) != node.next_tick.get() {
            thread.unmask_own_interrupts();
        }
        node.entered.set(None);
        node.asid.set(space.asid());
        node.is_virtualised.set(true);
        if let (Some(root), Some((table, _))) =
            (node.virtual_root.get(), thread.own_slot(own::VSPACE).capability.mapped_table())
        {
            root.activate::<Machine>(table);
        }
        self.note_user();
        Next::RunVirtualised(thread)
    }

    /// Serves the trap of a virtualised thread with this file; returns whether the hart can enter the thread again
    /// without preparation.
    #[inline(always)]
    pub(crate) fn serve_virtualised(&self, thread: Ref<Tcb>, trap: Trap, file: usize) -> bool {
        if trap != Trap::SystemCall {
            self.serve_other_trap(thread, trap, file);
            return false;
        }
        let entries = &thread.interrupts.entries;
        entries.set(entries.get() + 1);
        let number = thread.register::<17>().get();
        let mut has_collected = false;
        let keeps_translations = match number {
            number::Recv | number::NBRecv | number::ReplyRecv => {
                has_collected = self.collect(thread, file);
                true
            }
            // Every invocation that changes an object has a label; signals and messages need none.
            number::Call | number::Send | number::NBSend => MessageInfo(thread.register::<11>().get()).label() == 0,
            number::Reply | number::Yield | number::SignalRecv => true,
            number::ReturnFromUserInterrupt | number::WakeSyscallHandler => true,
            _ => false,
        };
        self.handle_call(thread);
        let node = self.node();
        if node.decision.get() == Decision::Keep
            && node.current.get() == Some(thread)
            && thread.state() == ThreadState::Running
        {
            if has_collected {
                // The call was about another object, and has not taken the signals that its handler will not see now.
                self.interrupt_if_signalled(thread);
            }
            let is_prepared = node.is_virtualised.get() && node.asid.get() != 0;
            return keeps_translations && is_prepared && self.handlers_awake.get() == 0;
        }
        if file != 0 && waits(thread) {
            self.watch_files();
        }
        false
    }

    /// Serves a trap that is no system call.
    #[cold]
    #[inline(never)]
    fn serve_other_trap(&self, thread: Ref<Tcb>, trap: Trap, file: usize) {
        if let Some(register) = trap.claim_without_file()
            && file == 0
        {
            // The thread lost its file while it was in its handler: the claim finds no interrupt.
            if register != 0 {
                thread.register_at(register).set(0);
            }
            thread.pc().set(thread.pc().get().wrapping_add(4));
            return;
        }
        if trap != Trap::Interrupt {
            let entries = &thread.interrupts.entries;
            entries.set(entries.get() + 1);
        }
        self.handle_other(thread, trap);
    }
}

/// Runs a virtualised thread, for which the hart is prepared, until that must be done again or another thread runs.
#[cold]
#[inline(never)]
pub fn run(shared: &Shared, thread: Ref<Tcb>, hart: usize) -> Next {
    // A hart that takes the file away makes this hart enter the kernel first, and prepare the thread anew.
    let file = thread.interrupts.file.get() as usize;
    prepare_virtualised::<Machine>(thread, file);
    loop {
        let trap = shared.note_trap(enter_virtualised::<Machine>(thread, file), hart);
        let kernel = shared.enter(hart);
        if MAXIMUM_NODES > 1 && kernel.node().current.get().is_none() {
            kernel.node().is_virtualised.set(false);
            kernel.serve_interrupts();
            return kernel.leave_and_poke();
        }
        if !kernel.serve_virtualised(thread, trap, file) {
            kernel.node().is_virtualised.set(false);
            return kernel.leave_and_poke();
        }
        kernel.poke_others();
        kernel.check_after_entry();
        kernel.note_user();
    }
}
