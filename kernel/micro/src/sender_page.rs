//! Sender pages: the rights to interrupt a thread without the kernel, on machines with IMSIC and with UINTC alike.
//!
//! The owner of a capability with the write right and one of the receiver's hints as badge can map a *sender page* into
//! an address space ([`MapSender`](abi_sel4::Invocation::PageTableMapSender)). With IMSIC it is the page of the
//! receiver's guest interrupt file, and a signal is a store to it (`user_interrupt_imsic`). With UINTC no page is
//! mapped: the sender gets an index, and sends by an instruction (`user_interrupt_uintc`).
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

use abi_sel4::configuration::USER_TOP;
use abi_sel4::object::PAGE_BITS;
use abi_sel4::{InvocationError, Rights};
use objects::{Capability, Mapping, Notification, Ref, Slot, Tcb};

use crate::invocation::Arguments;
use crate::kernel::Kernel;
use crate::machine;
use crate::state::{SENDERS_OF_A_SPACE, Sender};

/// Mask of the offset in a page.
const OFFSET: u64 = (1 << PAGE_BITS) - 1;

/// A decoded invocation that maps or unmaps a sender page.
#[derive(Clone, Copy, Debug)]
pub struct NewSender {
    source: Ref<Slot>,
    mapping: Option<Mapping>,
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
    #[inline]
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
        if interrupts.hints.get() & sender.badge.get() == 0 || interrupts.file_or_slot.get() == 0 {
            return false;
        }
        let Some(page) = machine::guest_page(self.node_of(receiver), interrupts.file_or_slot.get() as usize) else {
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
}
