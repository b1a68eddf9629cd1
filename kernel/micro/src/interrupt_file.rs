//! Notifications as user interrupts without the kernel: threads that run virtualised, and stores instead of signals.
//!
//! Where harts have guest interrupt files (hypervisor extension, IMSIC), a thread that registers for user interrupts
//! and names *hints*, bits of badges, runs virtualised from then on: with supervisor registers of its own, and with a
//! file of its hart in which a store makes one of these bits pending. Whoever has a capability with the right to signal
//! and one of the hints as badge can have the file's page in an address space
//! ([`MapSender`](abi_sel4::Invocation::PageTableMapSender)). A signal is a store to it then, and neither side enters
//! the kernel.
//!
//! # Who may send
//!
//! A page belongs to the capability that it was made with, as the mapping of a frame does: the capability holds the
//! number of a [`Sender`], moves with it, and leaves it behind when it is copied. Whoever deletes the capability takes
//! the page away, on every hart, before anything else happens. A store can carry any identity, which hardware does not
//! check. So hints are what the receiver has called so: only they are enabled in its file and taken out of it, and a
//! capability with another badge gets no page.
//!
//! # Who pays for a page
//!
//! What the kernel has to know of it stands in a table of the kernel's. So an address space has a share of it,
//! [`SENDERS_OF_A_SPACE`], and who has no page signals through the kernel. Who may make address spaces, with a pool of
//! identifiers, has a share for each, as of the identifiers themselves, which are a machine's too. Records in memory of
//! the sender's would have no such limit, but would have to be found from a receiver that loses its file: by a walk
//! over all capabilities of a notification, of which anybody who has one can make as many as fit into memory.
//!
//! # A store that finds no page
//!
//! faults, and the kernel maps the page, or signals in the name of the store and goes on behind it, which must be an
//! instruction of four bytes. So senders need not know whether the receiver has a file: it has none while it is
//! suspended or when the hart's files are used up, and another one when it has moved.
//!
//! A capability can go at any moment, between a sender's last look and its store, and with it whoever it was that could
//! be told. So a store where its page was does nothing, as a signal that must not block does nothing through an empty
//! slot (`NBSend`); otherwise each program would have to have a fault handler to outlive another. What says so is the
//! entry in the sender's own page table, which costs nobody anything, until something else is mapped there: a program
//! that gives the address to something else must have that mapped before it stores to it, and cannot leave it to its
//! fault handler. Whoever takes a page away and keeps the capability has the fault.
//!
//! # What is pending
//!
//! in a file is in the notification's word as far as anybody can tell: it is put there before the receiver looks at the
//! word, and when the file is taken away. While the receiver waits for it the file is *watched*: it interrupts the
//! kernel, which signals what is in it. A file whose thread does not wait is not watched, so whoever stores to it costs
//! nobody but its thread anything.
//!
//! # Entering and leaving
//!
//! A virtualised thread's address space is never noted (SPACE-EPOCH), so the fastpaths leave it alone. Each time it is
//! entered the user half of its root is copied to the root of the hart's second stage, and everything that the hart
//! knew of that stage forgotten; its supervisor registers are loaded and, when it comes back, saved. A hart that
//! changes an address space makes others that run a virtualised thread in it come back, instead of telling them what to
//! forget.
//!
//! # A flood
//!
//! of stores concerns the receiver's own handler. It masks its interrupts when it has seen enough; when it runs again
//! after a tick of its hart, the kernel unmasks them.

use abi_sel4::call::number;
use abi_sel4::configuration::USER_TOP;
use abi_sel4::object::PAGE_BITS;
use abi_sel4::{InvocationError, Rights};
use hal_api::{Trap, Virtualisation as _};
use objects::{Capability, Mapping, Notification, Ref, Slot, Space, Tcb, ThreadState, enter_virtualised, own};
use platform::Machine;

use crate::invocation::Arguments;
use crate::kernel::Kernel;
use crate::machine;
use crate::node::{FILES, MAXIMUM_NODES, Next};
use crate::smp::Shared;
use crate::state::Sender;

/// Pages for sending that can be in one address space.
pub const SENDERS_OF_A_SPACE: usize = 16;
/// Bits that can be hints: that of bit `n` is identity `n + 1`, and 63 the last one in a word.
pub const HINTS: u64 = !0 >> 1;

/// The bits of an address that are an offset in a page.
const OFFSET: u64 = (1 << PAGE_BITS) - 1;

/// A checked call for a page, or for the end of one.
#[derive(Clone, Copy, Debug)]
pub struct NewSender {
    source: Ref<Slot>,
    mapping: Option<Mapping>,
}

/// Whether a thread waits for the notification that is bound to it.
fn waits(thread: Ref<Tcb>) -> bool {
    match thread.state() {
        ThreadState::BlockedOnReceive => true,
        ThreadState::BlockedOnNotification => thread.waits_for.get() == thread.bound.get(),
        _ => false,
    }
}

impl Kernel {
    /// Checks a call of an address space for a page for sending.
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
            // It has that page, and whoever asks may not know.
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

    /// Carries that out.
    #[cold]
    #[inline(never)]
    pub(crate) fn set_sender(&self, NewSender { source, mapping }: NewSender) {
        let Capability::Notification { notification, badge, rights, page } = source.capability.get() else { return };
        if let Some(page) = page {
            let held = self.mapping_of_sender(page);
            if mapping.is_some() && mapping == held {
                return;
            }
            self.forget_sender(page);
            if let Some(held) = held {
                // What an earlier capability has left there is over.
                self.forget_revoked_sender(held);
            }
        }
        let page = mapping.and_then(|mapping| self.senders.take(notification, badge, mapping));
        source.capability.set(Capability::Notification { notification, badge, rights, page });
        if let Some(sender) = page.and_then(|page| self.senders.get(page)) {
            self.map_sender(sender);
        }
    }

    /// A capability that has a page goes: the page goes from every hart, and stores there do nothing from now on.
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

    /// Takes a capability's page away, on every hart.
    fn forget_sender(&self, page: u8) {
        if let Some(sender) = self.senders.get(page) {
            self.unmap_sender(sender);
            self.senders.give_back(sender);
        }
    }

    /// Maps a page, if the receiver has a file; says whether it is mapped.
    fn map_sender(&self, sender: &Sender) -> bool {
        let (Some(notification), Some(mapping)) = (sender.notification.get(), sender.mapping.get()) else {
            return false;
        };
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

    fn unmap_sender(&self, sender: &Sender) {
        let physical = sender.physical.take();
        if let Some(mapping) = sender.mapping.get()
            && physical != 0
        {
            self.unmap_frame(physical, objects::FrameSize::Small, mapping);
        }
    }

    /// An address space is gone, and with it the addresses of pages.
    pub(crate) fn forget_senders_in(&self, are_meant: impl Fn(u16) -> bool) {
        for sender in self.senders.iter().filter(|_| self.senders.in_use() > 0) {
            if sender.mapping.get().is_some_and(|mapping| are_meant(mapping.asid)) {
                sender.mapping.set(None);
                sender.physical.set(0);
            }
        }
    }

    /// Where a capability's page is mapped, if it is; for the consistency checker, which finds it to be the
    /// capability's.
    pub(crate) fn sender_page(&self, page: u8, notification: Ref<Notification>, badge: u64) -> Option<(u64, Mapping)> {
        let sender = self.senders.get(page).expect("capabilities have numbers of pages");
        let belongs = sender.notification.get() == Some(notification) && sender.badge.get() == badge;
        assert!(belongs, "a capability has a page for sending that is another's");
        let physical = sender.physical.get();
        sender.mapping.get().filter(|_| physical != 0).map(|mapping| (physical, mapping))
    }

    /// A thread has stored to a page that is not there. If that is one for sending, it is mapped, or the kernel does
    /// what the store should have done; says whether the thread goes on.
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
        // Another hart may have mapped it since.
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

    /// Gives a virtualised thread that is to be entered on this hart a file, if it wants one and one is free.
    fn take_file(&self, thread: Ref<Tcb>) {
        let interrupts = &thread.interrupts;
        if interrupts.hints.get() == 0 || interrupts.file.get() != 0 {
            return;
        }
        let files = &self.node().files;
        let count = FILES.min(Machine::guest_files() + 1);
        if let Some(file) = (1..count).find(|&file| files[file].get().is_none()) {
            files[file].set(Some(thread));
            interrupts.file.set(file as u64);
            Machine::prepare_guest_file(file, interrupts.hints.get() << 1);
        }
    }

    /// Takes a thread's file away, if it has one. Nobody can store to it any more; gives what was pending in it.
    #[inline]
    pub(crate) fn give_up_file(&self, thread: Ref<Tcb>) -> u64 {
        match thread.interrupts.file.get() {
            0 => 0,
            file => self.empty_file(thread, file as usize),
        }
    }

    #[cold]
    #[inline(never)]
    fn empty_file(&self, thread: Ref<Tcb>, file: usize) -> u64 {
        self.stop_elsewhere(thread);
        thread.interrupts.file.set(0);
        for sender in self.senders.iter() {
            if sender.notification.get() == thread.bound.get() && sender.physical.get() != 0 {
                self.unmap_sender(sender);
            }
        }
        // The file may be another's at once.
        self.flush_deferred();
        let node = self.node_of(thread);
        let pending = self.drain_file(node, file);
        self.nodes[node].files[file].set(None);
        pending >> 1 & thread.interrupts.hints.get()
    }

    /// Takes a thread's file away; what was pending in it is signalled.
    #[inline]
    pub(crate) fn deactivate(&self, thread: Ref<Tcb>) {
        let signals = self.give_up_file(thread);
        if let Some(notification) = thread.bound.get()
            && signals != 0
        {
            self.signal(notification, signals);
        }
    }

    /// Puts what is pending in the file of the thread that runs here into its notification's word.
    fn collect(&self, thread: Ref<Tcb>) {
        let interrupts = &thread.interrupts;
        let file = interrupts.file.get() as usize;
        if file == 0 {
            return;
        }
        let signals = Machine::take_guest_file(file) >> 1 & interrupts.hints.get();
        if let Some(notification) = thread.bound.get()
            && signals != 0
        {
            notification.is_active.set(1);
            notification.badge.set(notification.badge.get() | signals);
        }
    }

    /// Watches the files of this hart's threads that wait for what comes there, that of a thread that is about to, and
    /// no others.
    fn watch_files(&self, waiter: Option<Ref<Tcb>>) {
        let mut watched = 0;
        for (file, thread) in self.node().files.iter().enumerate() {
            if let Some(thread) = thread.get().filter(|&thread| waits(thread) || Some(thread) == waiter) {
                // Whatever else its program has enabled would be pending for ever.
                Machine::enable_guest_file(file, thread.interrupts.hints.get() << 1);
                watched |= 1 << file;
            }
        }
        Machine::watch_guest_files(watched);
    }

    /// Something has come in watched files of this hart.
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
        self.watch_files(None);
    }

    /// Prepares this hart to enter a virtualised thread.
    #[cold]
    #[inline(never)]
    pub(crate) fn enter_virtualised(&self, thread: Ref<Tcb>, space: Space) -> Next {
        let node = self.node();
        self.take_file(thread);
        self.watch_files(None);
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

    /// A virtualised thread has come into the kernel; says whether that is to be served as for any other.
    fn leave_virtualised(&self, thread: Ref<Tcb>, trap: Trap) -> bool {
        let interrupts = &thread.interrupts;
        if let Some(register) = trap.claim_without_file()
            && interrupts.file.get() == 0
        {
            // In its handler when it lost its file: nothing is pending there.
            if register != 0 {
                thread.register_at(register).set(0);
            }
            thread.pc().set(thread.pc().get().wrapping_add(4));
            return false;
        }
        match trap {
            Trap::Interrupt => return true,
            Trap::SystemCall => {
                let call = thread.register::<17>().get();
                if matches!(call, number::Recv | number::NBRecv | number::ReplyRecv) {
                    self.collect(thread);
                    // It may wait from now on.
                    self.watch_files(Some(thread));
                }
            }
            _ => {}
        }
        interrupts.entries.set(interrupts.entries.get() + 1);
        true
    }
}

/// Runs a virtualised thread once, and serves what has brought it into the kernel.
#[cold]
#[inline(never)]
pub fn run(shared: &Shared, thread: Ref<Tcb>, hart: usize) -> Next {
    // Who wants to take the file away makes this hart come back first.
    let file = thread.interrupts.file.get() as usize;
    let trap = shared.note_trap(enter_virtualised::<Machine>(thread, file), hart);
    let kernel = shared.enter(hart);
    kernel.node().is_virtualised.set(false);
    if MAXIMUM_NODES > 1 && kernel.node().current.get().is_none() {
        kernel.serve_interrupts();
    } else if kernel.leave_virtualised(thread, trap) {
        kernel.handle(thread, trap);
    }
    kernel.leave_and_poke()
}
