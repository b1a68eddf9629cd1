//! Kinds of capabilities as types, with a method for each invocation.
//!
//! A value is a *capability pointer* with the kind that the program assumes. The kernel checks the kind at each
//! invocation and answers [`Error::InvalidCapability`](crate::Error::InvalidCapability) or
//! [`Error::IllegalOperation`](crate::Error::IllegalOperation) if the capability is of another kind. The errors of each
//! invocation are in [`Invocation::errors`].

use abi_sel4::object::WORD_BITS;
use abi_sel4::registers::COUNT;
use abi_sel4::{CNodeData, Invocation, ObjectType, Registers, Rights, Trigger, message};

use crate::raw::{self, Result, invoke};

macro_rules! capabilities {
    ($($(#[$attribute:meta])* $name:ident;)*) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// Names the capability with this pointer in the thread's CSpace.
            pub const fn from_pointer(pointer: u64) -> $name {
                $name(pointer)
            }

            /// Returns the capability pointer.
            pub const fn pointer(self) -> u64 {
                self.0
            }
        }
    )*};
}

capabilities! {
    /// Untyped memory, of which objects are made.
    #[doc(alias = "UntypedMemory")]
    Untyped;
    /// A thread control block (TCB): registers, priorities, CSpace and address space of a thread.
    #[doc(alias = "TCB")]
    Thread;
    /// An endpoint, at which messages are handed over.
    Endpoint;
    /// A word of signals.
    Notification;
    /// A table of capabilities.
    #[doc(alias = "CSpace")]
    CNode;
    /// A page of any size.
    #[doc(alias("frame", "RISCV_Page"))]
    Page;
    /// A page table. One that has an ASID is an address space.
    #[doc(alias("VSpace", "RISCV_PageTable"))]
    PageTable;
    /// The right to make ASID pools.
    AsidControl;
    /// A pool of ASIDs.
    AsidPool;
    /// The right to make interrupt handlers.
    IrqControl;
    /// One interrupt.
    IrqHandler;
    /// The right to put threads into domains.
    DomainSet;
}

/// A slot: an index, resolved over `depth` bits from the CNode `root`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias("CPtr", "cslot"))]
pub struct Slot {
    /// CNode in which the lookup begins.
    pub root: CNode,
    /// Bits that are resolved on the way.
    pub index: u64,
    /// Number of these bits.
    pub depth: u64,
}

impl Slot {
    /// Names the slot of the thread's own CSpace that holds this pointer.
    pub const fn own(pointer: u64) -> Slot {
        Slot { root: CNode(abi_sel4::boot::slot::CNODE as u64), index: pointer, depth: WORD_BITS as u64 }
    }

    /// Deletes all capabilities that were derived from the one in this slot.
    ///
    /// Corresponds to `seL4_CNode_Revoke`.
    ///
    /// # Errors
    ///
    /// The slot is not found.
    #[doc(alias = "seL4_CNode_Revoke")]
    pub fn revoke(self) -> Result<()> {
        invoke(self.root.0, Invocation::CNodeRevoke, &[self.index, self.depth], &[]).map(drop)
    }

    /// Empties the slot; the object is deleted with its last capability.
    ///
    /// Corresponds to `seL4_CNode_Delete`.
    ///
    /// # Errors
    ///
    /// The slot is not found.
    #[doc(alias = "seL4_CNode_Delete")]
    pub fn delete(self) -> Result<()> {
        invoke(self.root.0, Invocation::CNodeDelete, &[self.index, self.depth], &[]).map(drop)
    }

    /// Cancels all sends through the endpoint that carry the badge of the capability in this slot.
    ///
    /// Corresponds to `seL4_CNode_CancelBadgedSends`.
    ///
    /// # Errors
    ///
    /// The slot is not found, or holds no capability to an endpoint with all rights.
    #[doc(alias = "seL4_CNode_CancelBadgedSends")]
    pub fn cancel_badged_sends(self) -> Result<()> {
        invoke(self.root.0, Invocation::CNodeCancelBadgedSends, &[self.index, self.depth], &[]).map(drop)
    }

    /// Puts a copy of the capability in `source` into this slot.
    ///
    /// Corresponds to `seL4_CNode_Copy`.
    ///
    /// # Errors
    ///
    /// A slot is not found, this slot is full, `source` is empty, or the capability in `source` cannot be copied.
    #[doc(alias = "seL4_CNode_Copy")]
    pub fn copy_from(self, source: Slot, rights: Rights) -> Result<()> {
        let words = [self.index, self.depth, source.index, source.depth, rights.word()];
        invoke(self.root.0, Invocation::CNodeCopy, &words, &[source.root.0]).map(drop)
    }

    /// Puts a copy with a badge, or with a guard ([`CNodeData`]), into this slot.
    ///
    /// Corresponds to `seL4_CNode_Mint`.
    ///
    /// # Errors
    ///
    /// As [`copy_from`](Slot::copy_from), and the badge or guard is not allowed.
    #[doc(alias = "seL4_CNode_Mint")]
    pub fn mint_from(self, source: Slot, rights: Rights, badge: u64) -> Result<()> {
        let words = [self.index, self.depth, source.index, source.depth, rights.word(), badge];
        invoke(self.root.0, Invocation::CNodeMint, &words, &[source.root.0]).map(drop)
    }

    /// Moves the capability in `source` into this slot.
    ///
    /// Corresponds to `seL4_CNode_Move`.
    ///
    /// # Errors
    ///
    /// A slot is not found, this slot is full, or `source` is empty.
    #[doc(alias = "seL4_CNode_Move")]
    pub fn move_from(self, source: Slot) -> Result<()> {
        let words = [self.index, self.depth, source.index, source.depth];
        invoke(self.root.0, Invocation::CNodeMove, &words, &[source.root.0]).map(drop)
    }

    /// Moves the capability in `source`, to a CNode, into this slot and gives it a guard ([`CNodeData`]). Capabilities
    /// to endpoints and notifications cannot be moved in this way, because only copies get badges; for all others
    /// `guard` is ignored.
    ///
    /// Corresponds to `seL4_CNode_Mutate`.
    ///
    /// # Errors
    ///
    /// As [`move_from`](Slot::move_from), and the guard is not allowed.
    #[doc(alias = "seL4_CNode_Mutate")]
    pub fn mutate_from(self, source: Slot, guard: u64) -> Result<()> {
        let words = [self.index, self.depth, source.index, source.depth, guard];
        invoke(self.root.0, Invocation::CNodeMutate, &words, &[source.root.0]).map(drop)
    }

    /// Moves the capability in `pivot` into this slot and the one in `source` to `pivot`, each with a new badge or
    /// guard unless that is zero.
    ///
    /// Corresponds to `seL4_CNode_Rotate`.
    ///
    /// # Errors
    ///
    /// A slot is not found; this slot is full and not `source`; `pivot` or `source` is empty; or `pivot` is this slot
    /// or `source`.
    #[doc(alias = "seL4_CNode_Rotate")]
    pub fn rotate_from(self, badge: u64, pivot: Slot, pivot_badge: u64, source: Slot) -> Result<()> {
        let words = [self.index, self.depth, badge, pivot.index, pivot.depth, pivot_badge, source.index, source.depth];
        invoke(self.root.0, Invocation::CNodeRotate, &words, &[pivot.root.0, source.root.0]).map(drop)
    }

    /// Saves the right to reply to the last caller into this slot.
    ///
    /// Corresponds to `seL4_CNode_SaveCaller`.
    ///
    /// # Errors
    ///
    /// The slot is not found or full.
    #[doc(alias = "seL4_CNode_SaveCaller")]
    pub fn save_caller(self) -> Result<()> {
        invoke(self.root.0, Invocation::CNodeSaveCaller, &[self.index, self.depth], &[]).map(drop)
    }
}

impl CNode {
    /// Names a slot of this CNode alone: `bits` is the number that the CNode resolves, its guard and size together.
    pub const fn slot(self, index: u64, bits: usize) -> Slot {
        Slot { root: self, index, depth: bits as u64 }
    }
}

impl Untyped {
    /// Makes `count` objects and puts capabilities to them into slots from `offset` on of the CNode that `node` names.
    /// A depth of zero names `node.root` itself.
    ///
    /// Corresponds to `seL4_Untyped_Retype`.
    ///
    /// # Errors
    ///
    /// The type, the size or the number is not allowed, memory or slots are too few, or a slot is full.
    #[doc(alias = "seL4_Untyped_Retype")]
    pub fn retype(self, object: ObjectType, size_bits: usize, node: Slot, offset: u64, count: u64) -> Result<()> {
        let words = [object.number() as u64, size_bits as u64, node.index, node.depth, offset, count];
        invoke(self.0, Invocation::UntypedRetype, &words, &[node.root.0]).map(drop)
    }
}

/// A thread's CSpace, address space and fault endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Spaces {
    /// Capability pointer, in the new CSpace, of the endpoint that gets the thread's faults; zero for none.
    pub fault_endpoint: u64,
    /// CNode in which lookups of capabilities begin.
    pub cspace: CNode,
    /// Guard of the thread's capability to that CNode; zero leaves it as it is.
    pub cspace_data: CNodeData,
    /// The address space.
    pub address_space: PageTable,
}

/// The way in which hints arrive at a thread without the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// They do not: they are signals like all others.
    Signals,
    /// As stores to a page; the thread takes a supervisor's external interrupts.
    Stores,
    /// As instructions `uipi_send`; the thread takes a user's software interrupts.
    Instructions,
}

impl Thread {
    /// Reads all registers.
    ///
    /// Corresponds to `seL4_TCB_ReadRegisters`.
    ///
    /// # Errors
    ///
    /// The capability is to the calling thread, or to no thread.
    #[doc(alias = "seL4_TCB_ReadRegisters")]
    pub fn read_registers(self) -> Result<Registers> {
        self.read_registers_with(0)
    }

    /// Suspends the thread and reads all registers.
    ///
    /// Corresponds to `seL4_TCB_ReadRegisters` with `suspend_source`.
    ///
    /// # Errors
    ///
    /// As [`read_registers`](Thread::read_registers).
    #[doc(alias = "seL4_TCB_ReadRegisters")]
    pub fn suspend_and_read_registers(self) -> Result<Registers> {
        self.read_registers_with(message::READ_REGISTERS_SUSPEND)
    }

    fn read_registers_with(self, flags: u64) -> Result<Registers> {
        let answer = invoke(self.0, Invocation::TcbReadRegisters, &[flags, COUNT as u64], &[])?;
        let word = |index: usize| answer.registers.get(index).copied().unwrap_or_else(|| raw::buffer_word(index));
        Ok(Registers::from_words(core::array::from_fn(word)))
    }

    /// Writes all registers.
    ///
    /// Corresponds to `seL4_TCB_WriteRegisters`.
    ///
    /// # Errors
    ///
    /// The capability is to the calling thread, or to no thread.
    #[doc(alias = "seL4_TCB_WriteRegisters")]
    pub fn write_registers(self, registers: &Registers) -> Result<()> {
        self.write_registers_with(0, registers)
    }

    /// Writes all registers and resumes the thread.
    ///
    /// Corresponds to `seL4_TCB_WriteRegisters` with `resume_target`.
    ///
    /// # Errors
    ///
    /// As [`write_registers`](Thread::write_registers).
    #[doc(alias = "seL4_TCB_WriteRegisters")]
    pub fn write_registers_and_resume(self, registers: &Registers) -> Result<()> {
        self.write_registers_with(message::WRITE_REGISTERS_RESUME, registers)
    }

    fn write_registers_with(self, flags: u64, registers: &Registers) -> Result<()> {
        let mut words = [0; 2 + COUNT];
        words[0] = flags;
        words[1] = COUNT as u64;
        words[2..].copy_from_slice(&registers.to_words());
        invoke(self.0, Invocation::TcbWriteRegisters, &words, &[]).map(drop)
    }

    /// Copies registers from another thread; `flags` are the constants `COPY_REGISTERS_…` of [`abi_sel4::message`].
    ///
    /// Corresponds to `seL4_TCB_CopyRegisters`.
    ///
    /// # Errors
    ///
    /// This capability or `source` is not to a thread.
    #[doc(alias = "seL4_TCB_CopyRegisters")]
    pub fn copy_registers(self, source: Thread, flags: u64) -> Result<()> {
        invoke(self.0, Invocation::TcbCopyRegisters, &[flags], &[source.0]).map(drop)
    }

    /// Sets the thread's spaces, and its IPC buffer; an address of zero means none.
    ///
    /// Corresponds to `seL4_TCB_Configure`.
    ///
    /// # Errors
    ///
    /// A capability is of the wrong kind, the guard is not allowed, or the buffer is not aligned.
    #[doc(alias = "seL4_TCB_Configure")]
    pub fn configure(self, spaces: Spaces, buffer: u64, buffer_page: Page) -> Result<()> {
        let words = [spaces.fault_endpoint, spaces.cspace_data.0, 0, buffer];
        let capabilities = [spaces.cspace.0, spaces.address_space.0, buffer_page.0];
        invoke(self.0, Invocation::TcbConfigure, &words, &capabilities).map(drop)
    }

    /// Sets the thread's spaces.
    ///
    /// Corresponds to `seL4_TCB_SetSpace`.
    ///
    /// # Errors
    ///
    /// A capability is of the wrong kind, or the guard is not allowed.
    #[doc(alias = "seL4_TCB_SetSpace")]
    pub fn set_space(self, spaces: Spaces) -> Result<()> {
        let words = [spaces.fault_endpoint, spaces.cspace_data.0, 0];
        invoke(self.0, Invocation::TcbSetSpace, &words, &[spaces.cspace.0, spaces.address_space.0]).map(drop)
    }

    /// Sets the priority.
    ///
    /// Corresponds to `seL4_TCB_SetPriority`.
    ///
    /// # Errors
    ///
    /// `priority` is above the maximum controlled priority of `authority`.
    #[doc(alias = "seL4_TCB_SetPriority")]
    pub fn set_priority(self, authority: Thread, priority: u64) -> Result<()> {
        invoke(self.0, Invocation::TcbSetPriority, &[priority], &[authority.0]).map(drop)
    }

    /// Sets the maximum controlled priority.
    ///
    /// Corresponds to `seL4_TCB_SetMCPriority`.
    ///
    /// # Errors
    ///
    /// `priority` is above the maximum controlled priority of `authority`.
    #[doc(alias = "seL4_TCB_SetMCPriority")]
    pub fn set_maximum_controlled_priority(self, authority: Thread, priority: u64) -> Result<()> {
        invoke(self.0, Invocation::TcbSetMCPriority, &[priority], &[authority.0]).map(drop)
    }

    /// Sets both priorities.
    ///
    /// Corresponds to `seL4_TCB_SetSchedParams`.
    ///
    /// # Errors
    ///
    /// `maximum` or `priority` is above the maximum controlled priority of `authority`.
    #[doc(alias = "seL4_TCB_SetSchedParams")]
    pub fn set_scheduling(self, authority: Thread, maximum: u64, priority: u64) -> Result<()> {
        invoke(self.0, Invocation::TcbSetSchedParams, &[maximum, priority], &[authority.0]).map(drop)
    }

    /// Sets the IPC buffer; an address of zero removes it.
    ///
    /// Corresponds to `seL4_TCB_SetIPCBuffer`.
    ///
    /// # Errors
    ///
    /// The address is not aligned, or the page cannot hold a buffer.
    #[doc(alias = "seL4_TCB_SetIPCBuffer")]
    pub fn set_ipc_buffer(self, buffer: u64, page: Page) -> Result<()> {
        invoke(self.0, Invocation::TcbSetIPCBuffer, &[buffer], &[page.0]).map(drop)
    }

    /// Suspends the thread.
    ///
    /// Corresponds to `seL4_TCB_Suspend`.
    ///
    /// # Errors
    ///
    /// The capability is not to a thread.
    #[doc(alias = "seL4_TCB_Suspend")]
    pub fn suspend(self) -> Result<()> {
        invoke(self.0, Invocation::TcbSuspend, &[], &[]).map(drop)
    }

    /// Resumes the thread.
    ///
    /// Corresponds to `seL4_TCB_Resume`.
    ///
    /// # Errors
    ///
    /// The capability is not to a thread.
    #[doc(alias = "seL4_TCB_Resume")]
    pub fn resume(self) -> Result<()> {
        invoke(self.0, Invocation::TcbResume, &[], &[]).map(drop)
    }

    /// Binds a notification, whose signals the thread then also receives while it waits for messages.
    ///
    /// Corresponds to `seL4_TCB_BindNotification`.
    ///
    /// # Errors
    ///
    /// The thread or the notification is bound already, or the notification's capability has no right to read.
    #[doc(alias = "seL4_TCB_BindNotification")]
    pub fn bind_notification(self, notification: Notification) -> Result<()> {
        invoke(self.0, Invocation::TcbBindNotification, &[], &[notification.0]).map(drop)
    }

    /// Unbinds the thread's notification.
    ///
    /// Corresponds to `seL4_TCB_UnbindNotification`.
    ///
    /// # Errors
    ///
    /// No notification is bound.
    #[doc(alias = "seL4_TCB_UnbindNotification")]
    pub fn unbind_notification(self) -> Result<()> {
        invoke(self.0, Invocation::TcbUnbindNotification, &[], &[]).map(drop)
    }

    /// Registers a handler at this address, which signals of the bound notification enter while the thread runs. For
    /// the handler's contract see [`user_interrupt`](crate::user_interrupt), which has one. Not an invocation of seL4.
    ///
    /// # Errors
    ///
    /// [`Error::IllegalOperation`](crate::Error::IllegalOperation) if the notification is not the one that is bound, or
    /// on seL4.
    pub fn register_user_interrupts(self, notification: Notification, handler: u64) -> Result<()> {
        self.register_user_interrupts_in_hardware(notification, handler, 0, 0).map(drop)
    }

    /// Registers a handler as [`register_user_interrupts`](Thread::register_user_interrupts) does; on a machine that
    /// can do that, the bits of `hints` can also come without the kernel, and interrupt the thread at `vector`. Returns
    /// in which way they come on this machine, even without hints. Not an invocation of seL4.
    ///
    /// # Errors
    ///
    /// As [`register_user_interrupts`](Thread::register_user_interrupts).
    pub fn register_user_interrupts_in_hardware(
        self,
        notification: Notification,
        handler: u64,
        hints: u64,
        vector: u64,
    ) -> Result<Arrival> {
        let words = [handler, hints, vector];
        let answer = invoke(self.0, Invocation::TcbRegisterUserInterrupts, &words, &[notification.0])?;
        Ok(match answer.registers[0] {
            0 => Arrival::Signals,
            1 => Arrival::Stores,
            _ => Arrival::Instructions,
        })
    }

    /// Ends user interrupts. Returns the number of system calls and faults of the thread since signals can come without
    /// the kernel. Not an invocation of seL4.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn end_user_interrupts(self) -> Result<u64> {
        invoke(self.0, Invocation::TcbRegisterUserInterrupts, &[0], &[]).map(|answer| answer.registers[1])
    }

    /// Moves the thread to a core.
    ///
    /// Corresponds to `seL4_TCB_SetAffinity`.
    ///
    /// # Errors
    ///
    /// There is no such core, or the kernel is for one core.
    #[doc(alias = "seL4_TCB_SetAffinity")]
    pub fn set_affinity(self, core: u64) -> Result<()> {
        invoke(self.0, Invocation::TcbSetAffinity, &[core], &[]).map(drop)
    }

    /// Sets the thread's `tp`.
    ///
    /// Corresponds to `seL4_TCB_SetTLSBase`.
    ///
    /// # Errors
    ///
    /// The capability is not to a thread.
    #[doc(alias = "seL4_TCB_SetTLSBase")]
    pub fn set_thread_pointer(self, address: u64) -> Result<()> {
        invoke(self.0, Invocation::TcbSetTLSBase, &[address], &[]).map(drop)
    }

    /// Clears and sets flags, and returns the new ones.
    ///
    /// Corresponds to `seL4_TCB_SetFlags`.
    ///
    /// # Errors
    ///
    /// The capability is not to a thread.
    #[doc(alias = "seL4_TCB_SetFlags")]
    pub fn set_flags(self, clear: u64, set: u64) -> Result<u64> {
        invoke(self.0, Invocation::TcbSetFlags, &[clear, set], &[]).map(|answer| answer.registers[0])
    }
}

impl IrqControl {
    /// Makes a capability to an interrupt in `slot`.
    ///
    /// Corresponds to `seL4_IRQControl_Get`.
    ///
    /// # Errors
    ///
    /// There is no such interrupt, the interrupt has a capability already, or `slot` is not found or full.
    #[doc(alias = "seL4_IRQControl_Get")]
    pub fn get(self, interrupt: u64, slot: Slot) -> Result<()> {
        invoke(self.0, Invocation::IrqControlGet, &[interrupt, slot.index, slot.depth], &[slot.root.0]).map(drop)
    }

    /// Makes a capability to an interrupt with this trigger.
    ///
    /// Corresponds to `seL4_IRQControl_GetTrigger`.
    ///
    /// # Errors
    ///
    /// As [`get`](IrqControl::get), and the interrupt controller cannot be configured.
    #[doc(alias = "seL4_IRQControl_GetTrigger")]
    pub fn get_with_trigger(self, interrupt: u64, trigger: Trigger, slot: Slot) -> Result<()> {
        let words = [interrupt, trigger.word(), slot.index, slot.depth];
        invoke(self.0, Invocation::IrqControlGetTrigger, &words, &[slot.root.0]).map(drop)
    }
}

impl IrqHandler {
    /// Acknowledges the interrupt.
    ///
    /// Corresponds to `seL4_IRQHandler_Ack`.
    ///
    /// # Errors
    ///
    /// The capability is not to an interrupt handler.
    #[doc(alias = "seL4_IRQHandler_Ack")]
    pub fn acknowledge(self) -> Result<()> {
        invoke(self.0, Invocation::IrqHandlerAck, &[], &[]).map(drop)
    }

    /// Sets the notification that the interrupt signals.
    ///
    /// Corresponds to `seL4_IRQHandler_SetNotification`.
    ///
    /// # Errors
    ///
    /// The capability is not to a notification, or has no right to write.
    #[doc(alias = "seL4_IRQHandler_SetNotification")]
    pub fn set_notification(self, notification: Notification) -> Result<()> {
        invoke(self.0, Invocation::IrqHandlerSetNotification, &[], &[notification.0]).map(drop)
    }

    /// Removes the notification that the interrupt signals.
    ///
    /// Corresponds to `seL4_IRQHandler_Clear`.
    ///
    /// # Errors
    ///
    /// The capability is not to an interrupt handler.
    #[doc(alias = "seL4_IRQHandler_Clear")]
    pub fn clear(self) -> Result<()> {
        invoke(self.0, Invocation::IrqHandlerClear, &[], &[]).map(drop)
    }
}

impl DomainSet {
    /// Puts a thread into a domain.
    ///
    /// Corresponds to `seL4_DomainSet_Set`.
    ///
    /// # Errors
    ///
    /// There is no such domain, or the capability is not to a thread.
    #[doc(alias = "seL4_DomainSet_Set")]
    pub fn set(self, domain: u64, thread: Thread) -> Result<()> {
        invoke(self.0, Invocation::DomainSetSet, &[domain], &[thread.0]).map(drop)
    }

    /// Changes an entry of the schedule of domains.
    ///
    /// Corresponds to `seL4_DomainSet_ScheduleConfigure`.
    ///
    /// # Errors
    ///
    /// There is no such entry or domain, or the duration is not allowed.
    #[doc(alias = "seL4_DomainSet_ScheduleConfigure")]
    pub fn configure_schedule(self, index: u64, domain: u64, duration: u64) -> Result<()> {
        invoke(self.0, Invocation::DomainSetScheduleConfigure, &[index, domain, duration], &[]).map(drop)
    }

    /// Sets the entry with which the schedule begins.
    ///
    /// Corresponds to `seL4_DomainSet_ScheduleSetStart`.
    ///
    /// # Errors
    ///
    /// There is no entry `index`, or that entry marks the schedule's end.
    #[doc(alias = "seL4_DomainSet_ScheduleSetStart")]
    pub fn set_schedule_start(self, index: u64) -> Result<()> {
        invoke(self.0, Invocation::DomainSetScheduleSetStart, &[index], &[]).map(drop)
    }
}

impl PageTable {
    /// Maps this table at the topmost level without a table for the address.
    ///
    /// Corresponds to `seL4_RISCV_PageTable_Map`.
    ///
    /// # Errors
    ///
    /// The table is mapped already, no table is missing at the address, or `space` is no address space.
    #[doc(alias = "seL4_RISCV_PageTable_Map")]
    pub fn map(self, space: PageTable, address: u64, attributes: u64) -> Result<()> {
        invoke(self.0, Invocation::PageTableMap, &[address, attributes], &[space.0]).map(drop)
    }

    /// Maps a page of this address space, a store to which signals the notification; for its use see
    /// [`user_interrupt`](crate::user_interrupt). Returns the index for `uipi_send` where that does the same; 0
    /// elsewhere. Not an invocation of seL4.
    ///
    /// # Errors
    ///
    /// The notification interrupts no thread, or the notification's badge is not one of the bits that can come as
    /// stores; the capability has a page already, the address space has reached its limit of such pages, or the machine
    /// has no more of them; or no page can be mapped at the address.
    pub fn map_sender(self, notification: Notification, address: u64) -> Result<u64> {
        invoke(self.0, Invocation::PageTableMapSender, &[address], &[notification.0]).map(|answer| answer.registers[0])
    }

    /// Unmaps the capability's page, if it has one. Not an invocation of seL4.
    ///
    /// # Errors
    ///
    /// The capability is not to a notification, or has no right to signal.
    pub fn unmap_sender(self, notification: Notification) -> Result<()> {
        invoke(self.0, Invocation::PageTableMapSender, &[0], &[notification.0]).map(drop)
    }

    /// Unmaps this table.
    ///
    /// Corresponds to `seL4_RISCV_PageTable_Unmap`.
    ///
    /// # Errors
    ///
    /// The table is an address space, or has other capabilities.
    #[doc(alias = "seL4_RISCV_PageTable_Unmap")]
    pub fn unmap(self) -> Result<()> {
        invoke(self.0, Invocation::PageTableUnmap, &[], &[]).map(drop)
    }
}

impl Page {
    /// Maps this page, or changes the rights of its mapping.
    ///
    /// Corresponds to `seL4_RISCV_Page_Map`.
    ///
    /// # Errors
    ///
    /// A page table is missing, another page is mapped there, the page is mapped elsewhere, or the address is not
    /// aligned.
    #[doc(alias = "seL4_RISCV_Page_Map")]
    pub fn map(self, space: PageTable, address: u64, rights: Rights, attributes: u64) -> Result<()> {
        invoke(self.0, Invocation::PageMap, &[address, rights.word(), attributes], &[space.0]).map(drop)
    }

    /// Unmaps this page; no effect on one that is not mapped.
    ///
    /// Corresponds to `seL4_RISCV_Page_Unmap`.
    ///
    /// # Errors
    ///
    /// The capability is not to a page.
    #[doc(alias = "seL4_RISCV_Page_Unmap")]
    pub fn unmap(self) -> Result<()> {
        invoke(self.0, Invocation::PageUnmap, &[], &[]).map(drop)
    }

    /// Returns the page's physical address.
    ///
    /// Corresponds to `seL4_RISCV_Page_GetAddress`.
    ///
    /// # Errors
    ///
    /// The capability is not to a page.
    #[doc(alias = "seL4_RISCV_Page_GetAddress")]
    pub fn physical_address(self) -> Result<u64> {
        invoke(self.0, Invocation::PageGetAddress, &[], &[]).map(|answer| answer.registers[0])
    }
}

impl AsidControl {
    /// Makes an ASID pool of untyped memory of 4 KiB.
    ///
    /// Corresponds to `seL4_RISCV_ASIDControl_MakePool`.
    ///
    /// # Errors
    ///
    /// The memory has another size or is in use, there are no more pools, or the slot is not found or full.
    #[doc(alias = "seL4_RISCV_ASIDControl_MakePool")]
    pub fn make_pool(self, memory: Untyped, slot: Slot) -> Result<()> {
        let capabilities = [memory.0, slot.root.0];
        invoke(self.0, Invocation::AsidControlMakePool, &[slot.index, slot.depth], &capabilities).map(drop)
    }
}

impl AsidPool {
    /// Makes a page table the root of an address space.
    ///
    /// Corresponds to `seL4_RISCV_ASIDPool_Assign`.
    ///
    /// # Errors
    ///
    /// The pool is full, or the table is mapped or an address space already.
    #[doc(alias = "seL4_RISCV_ASIDPool_Assign")]
    pub fn assign(self, table: PageTable) -> Result<()> {
        invoke(self.0, Invocation::AsidPoolAssign, &[], &[table.0]).map(drop)
    }
}

/// Capabilities of the initial thread.
pub mod initial {
    use super::*;
    use abi_sel4::boot::slot;

    /// The initial thread.
    pub const THREAD: Thread = Thread(slot::THREAD as u64);
    /// CNode of the initial thread.
    pub const CNODE: CNode = CNode(slot::CNODE as u64);
    /// Address space of the initial thread.
    pub const ADDRESS_SPACE: PageTable = PageTable(slot::ADDRESS_SPACE as u64);
    /// The right to make handlers of interrupts.
    pub const IRQ_CONTROL: IrqControl = IrqControl(slot::IRQ_CONTROL as u64);
    /// The right to make ASID pools.
    pub const ASID_CONTROL: AsidControl = AsidControl(slot::ASID_CONTROL as u64);
    /// ASID pool of the initial thread's address space.
    pub const ASID_POOL: AsidPool = AsidPool(slot::ASID_POOL as u64);
    /// The page with the boot information.
    pub const BOOT_INFO: Page = Page(slot::BOOT_INFO as u64);
    /// Page with the initial thread's IPC buffer.
    pub const IPC_BUFFER: Page = Page(slot::IPC_BUFFER as u64);
    /// The right to put threads into domains.
    pub const DOMAIN: DomainSet = DomainSet(slot::DOMAIN as u64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi_sel4::asynchronous;

    /// Returns the names of seL4's functions in a file's attributes and in the arguments of its macros.
    fn names(source: &str) -> std::collections::BTreeSet<&str> {
        source.split('"').filter(|text| text.starts_with("seL4_")).collect()
    }

    #[test]
    fn every_invocation_of_sel4_is_found_by_its_name() {
        let synchronous = names(include_str!("capability.rs"));
        let asynchronous = names(include_str!("asynchronous.rs"));
        for &invocation in Invocation::ALL {
            let name = std::format!("seL4_{}", invocation.name());
            assert_eq!(synchronous.contains(name.as_str()), !invocation.is_addition(), "{name}");
            assert_eq!(
                asynchronous.contains(name.as_str()),
                asynchronous::covers(invocation),
                "{name}, asynchronously"
            );
        }
    }
}
