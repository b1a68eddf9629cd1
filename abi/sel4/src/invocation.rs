//! Invocations: operations on a capability, selected by the label of the message that is sent to it.
//!
//! Arguments are words of the message, in order; capabilities among them travel as the message's capabilities and not
//! as words. The answer has the label 0 or an [`Error`], and its words are the results or the error's details.
//! Endpoints, notifications and replies are invoked by a message with any label and are not in this table. The manual's
//! `seL4_TCB_SetPriority` is `"TCB SetPriority"` here, and so the variant `TcbSetPriority`.

use crate::Error;

/// Numbering of labels, which depends on the kernel's build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// A kernel for one core, which does not have [`Invocation::TcbSetAffinity`].
    Uniprocessor,
    /// A kernel for several cores.
    Multiprocessor,
}

/// Kind of a word of an invocation, for tracing, for documentation and for tests that try wrong values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordKind {
    /// A number.
    Number,
    /// A set of bits.
    Flags,
    /// A capability pointer in the invoking thread's or the given CSpace.
    Index,
    /// Number of bits of the index before it that are resolved; the low 8 bits count.
    Depth,
    /// A badge or a CNode's guard.
    Badge,
    /// [`Rights`](crate::Rights).
    Rights,
    /// A virtual address.
    Address,
    /// All further words: registers in the order of [`Registers`](crate::Registers).
    Registers,
}

impl WordKind {
    /// Returns the name of the kind on the reference page.
    pub const fn name(self) -> &'static str {
        match self {
            WordKind::Number => "number",
            WordKind::Flags => "flags",
            WordKind::Index => "capability pointer",
            WordKind::Depth => "bits",
            WordKind::Badge => "badge or guard",
            WordKind::Rights => "rights",
            WordKind::Address => "address",
            WordKind::Registers => "registers",
        }
    }
}

macro_rules! invocations {
    ($($(#[doc = $text:literal])* $variant:ident = $label:literal $object:ident $method:ident
        ($($word:ident: $kind:ident),*) [$($capability:ident),*] -> ($($result:ident),*);)*) => {
        /// An invocation. The numbers are the labels of [`Numbering::Multiprocessor`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[doc(alias = "invocation_label")]
        pub enum Invocation {
            $($(#[doc = $text])* $variant = $label,)*
        }

        impl Invocation {
            /// The whole table.
            pub const ALL: &'static [Invocation] = &[$(Invocation::$variant),*];

            const fn from_multiprocessor_label(label: u64) -> Option<Invocation> {
                match label { $($label => Some(Invocation::$variant),)* _ => None }
            }

            /// Returns the manual's name of the invoked object.
            pub const fn object(self) -> &'static str {
                match self { $(Invocation::$variant => stringify!($object),)* }
            }

            /// Returns the manual's name of the method.
            pub const fn method(self) -> &'static str {
                match self { $(Invocation::$variant => stringify!($method),)* }
            }

            /// Returns object and method: the name of the function in seL4's library without its prefix.
            pub const fn name(self) -> &'static str {
                match self { $(Invocation::$variant => concat!(stringify!($object), "_", stringify!($method)),)* }
            }

            /// Returns its comment in the table.
            pub const fn description(self) -> &'static str {
                match self { $(Invocation::$variant => concat!($($text),*).trim_ascii(),)* }
            }

            /// Returns names and kinds of the words of the message.
            pub const fn words(self) -> &'static [(&'static str, WordKind)] {
                match self { $(Invocation::$variant => &[$((stringify!($word), WordKind::$kind)),*],)* }
            }

            /// Returns names of the capabilities that the message carries.
            pub const fn capabilities(self) -> &'static [&'static str] {
                match self { $(Invocation::$variant => &[$(stringify!($capability)),*],)* }
            }

            /// Returns names of the words of the answer.
            pub const fn results(self) -> &'static [&'static str] {
                match self { $(Invocation::$variant => &[$(stringify!($result)),*],)* }
            }
        }
    };
}

impl Invocation {
    /// Returns the invocation with this label.
    #[inline]
    pub const fn from_label(label: u64, numbering: Numbering) -> Option<Invocation> {
        let affinity = Invocation::TcbSetAffinity as u64;
        match numbering {
            Numbering::Uniprocessor if label >= affinity => match label.checked_add(1) {
                Some(label) => Self::from_multiprocessor_label(label),
                None => None,
            },
            _ => Self::from_multiprocessor_label(label),
        }
    }

    /// Returns the label of this invocation; `None` if the numbering does not have it.
    #[inline]
    pub const fn label(self, numbering: Numbering) -> Option<u64> {
        let label = self as u64;
        let affinity = Invocation::TcbSetAffinity as u64;
        match numbering {
            Numbering::Multiprocessor => Some(label),
            Numbering::Uniprocessor if label < affinity => Some(label),
            Numbering::Uniprocessor if label == affinity => None,
            Numbering::Uniprocessor => Some(label - 1),
        }
    }

    /// Returns the first label after the last: labels from here on have no invocation.
    #[inline]
    pub const fn first_free_label(numbering: Numbering) -> u64 {
        let count = Self::ALL.len() as u64;
        match numbering {
            Numbering::Uniprocessor => count,
            Numbering::Multiprocessor => count + 1,
        }
    }
}

impl Invocation {
    /// Returns whether seL4 does not have it: additions stand behind seL4's last label.
    pub const fn is_addition(self) -> bool {
        self as u8 > Invocation::IrqControlGetTrigger as u8
    }

    /// Returns the errors that its arguments and the state of the named objects can cause. The suite of the interface
    /// sees each of them, and no other.
    ///
    /// Besides, every invocation of an empty slot is [`InvalidCapability`](Error::InvalidCapability), and an invocation
    /// that the object does not have is [`IllegalOperation`](Error::IllegalOperation).
    pub const fn errors(self) -> &'static [Error] {
        use Error::*;
        use Invocation::*;
        match self {
            TcbSuspend | TcbResume | IrqHandlerAck | IrqHandlerClear | PageUnmap | PageGetAddress => &[],
            TcbSetTLSBase | TcbSetFlags => &[TruncatedMessage],
            TcbReadRegisters => &[IllegalOperation, RangeError, TruncatedMessage],
            TcbWriteRegisters | TcbBindNotification | TcbSetAffinity => &[IllegalOperation, TruncatedMessage],
            TcbUnbindNotification => &[IllegalOperation],
            TcbCopyRegisters | IrqHandlerSetNotification => &[InvalidCapability, TruncatedMessage],
            TcbSetPriority | TcbSetMCPriority | TcbSetSchedParams => &[InvalidCapability, RangeError, TruncatedMessage],
            TcbConfigure | TcbSetIPCBuffer => &[IllegalOperation, AlignmentError, TruncatedMessage, RevokeFirst],
            TcbSetSpace => &[IllegalOperation, TruncatedMessage, RevokeFirst],
            UntypedRetype => {
                &[InvalidArgument, RangeError, FailedLookup, TruncatedMessage, DeleteFirst, NotEnoughMemory]
            }
            CNodeRevoke | CNodeDelete => &[RangeError, FailedLookup, TruncatedMessage],
            CNodeCancelBadgedSends => &[IllegalOperation, RangeError, FailedLookup, TruncatedMessage],
            CNodeMove | CNodeSaveCaller => &[RangeError, FailedLookup, TruncatedMessage, DeleteFirst],
            CNodeMutate | CNodeRotate => &[IllegalOperation, RangeError, FailedLookup, TruncatedMessage, DeleteFirst],
            CNodeCopy | CNodeMint => {
                &[IllegalOperation, RangeError, FailedLookup, TruncatedMessage, DeleteFirst, RevokeFirst]
            }
            IrqControlGet | IrqControlGetTrigger => {
                &[RangeError, FailedLookup, TruncatedMessage, DeleteFirst, RevokeFirst]
            }
            DomainSetSet => &[InvalidArgument, TruncatedMessage],
            DomainSetScheduleConfigure | DomainSetScheduleSetStart => &[InvalidArgument, RangeError, TruncatedMessage],
            PageTableMap => &[InvalidArgument, InvalidCapability, FailedLookup, TruncatedMessage, DeleteFirst],
            PageTableUnmap => &[RevokeFirst],
            PageMap => {
                &[InvalidArgument, InvalidCapability, AlignmentError, FailedLookup, TruncatedMessage, DeleteFirst]
            }
            AsidControlMakePool => {
                &[InvalidCapability, RangeError, FailedLookup, TruncatedMessage, DeleteFirst, RevokeFirst]
            }
            AsidPoolAssign => &[InvalidCapability, TruncatedMessage, DeleteFirst],
            TcbRegisterAsyncSyscall => {
                &[InvalidArgument, InvalidCapability, RangeError, FailedLookup, TruncatedMessage]
            }
            TcbRegisterUserInterrupts => &[InvalidCapability, IllegalOperation, AlignmentError, TruncatedMessage],
            PageTableMapSender => &[
                InvalidArgument,
                InvalidCapability,
                IllegalOperation,
                AlignmentError,
                FailedLookup,
                TruncatedMessage,
                DeleteFirst,
            ],
        }
    }
}

invocations! {
    /// Makes objects of untyped memory and puts capabilities to them into consecutive empty slots.
    UntypedRetype = 1 Untyped Retype
        (type: Number, size_bits: Number, node_index: Index, node_depth: Depth, node_offset: Number, num_objects: Number) [root] -> ();
    /// Reads registers of a thread. Bit 0 of the flags suspends it first.
    TcbReadRegisters = 2 TCB ReadRegisters (flags: Flags, count: Number) [] -> (registers);
    /// Writes registers of a thread. Bit 0 of the flags resumes it afterwards.
    TcbWriteRegisters = 3 TCB WriteRegisters (flags: Flags, count: Number, registers: Registers) [] -> ();
    /// Copies registers from the source to the invoked thread. Flags: 0 suspend the source, 1 resume the target, 2
    /// frame registers, 3 integer registers.
    TcbCopyRegisters = 4 TCB CopyRegisters (flags: Flags) [source] -> ();
    /// Sets fault endpoint, CSpace, address space and IPC buffer of a thread.
    TcbConfigure = 5 TCB Configure
        (fault_ep: Index, cspace_root_data: Badge, vspace_root_data: Number, buffer: Address) [cspace_root, vspace_root, buffer_frame] -> ();
    /// Sets a thread's priority, up to the maximum controlled priority of the authority.
    TcbSetPriority = 6 TCB SetPriority (priority: Number) [authority] -> ();
    /// Sets a thread's maximum controlled priority.
    TcbSetMCPriority = 7 TCB SetMCPriority (mcp: Number) [authority] -> ();
    /// Sets both priorities of a thread.
    TcbSetSchedParams = 8 TCB SetSchedParams (mcp: Number, priority: Number) [authority] -> ();
    /// Sets a thread's IPC buffer; the address 0 takes it away.
    TcbSetIPCBuffer = 9 TCB SetIPCBuffer (buffer: Address) [buffer_frame] -> ();
    /// Sets fault endpoint, CSpace and address space of a thread.
    TcbSetSpace = 10 TCB SetSpace
        (fault_ep: Index, cspace_root_data: Badge, vspace_root_data: Number) [cspace_root, vspace_root] -> ();
    /// Makes a thread stop, and cancels the message that it sends or waits for.
    TcbSuspend = 11 TCB Suspend () [] -> ();
    /// Makes a thread runnable; a blocked thread repeats its system call.
    TcbResume = 12 TCB Resume () [] -> ();
    /// Binds a notification to a thread, which then receives its signals also while it waits for messages.
    TcbBindNotification = 13 TCB BindNotification () [notification] -> ();
    /// Unbinds a thread's notification.
    TcbUnbindNotification = 14 TCB UnbindNotification () [] -> ();
    /// Moves a thread to a core. Only kernels for several cores have it.
    TcbSetAffinity = 15 TCB SetAffinity (affinity: Number) [] -> ();
    /// Sets a thread's `tp`.
    TcbSetTLSBase = 16 TCB SetTLSBase (tls_base: Address) [] -> ();
    /// Clears and sets flags of a thread; bit 0 keeps it from using the FPU. Returns the flags as they are then.
    TcbSetFlags = 17 TCB SetFlags (clear: Flags, set: Flags) [] -> (flags);
    /// Deletes all capabilities that were derived from the one in the slot.
    CNodeRevoke = 18 CNode Revoke (index: Index, depth: Depth) [] -> ();
    /// Empties a slot; the object is freed with its last capability.
    CNodeDelete = 19 CNode Delete (index: Index, depth: Depth) [] -> ();
    /// Cancels all sends through the endpoint that carry the badge of the capability in the slot.
    CNodeCancelBadgedSends = 20 CNode CancelBadgedSends (index: Index, depth: Depth) [] -> ();
    /// Puts a copy of a capability, with the same or fewer rights, into an empty slot.
    CNodeCopy = 21 CNode Copy
        (dest_index: Index, dest_depth: Depth, src_index: Index, src_depth: Depth, rights: Rights) [src_root] -> ();
    /// Puts a copy of a capability, with the same or fewer rights and with a badge or a guard, into an empty slot.
    CNodeMint = 22 CNode Mint
        (dest_index: Index, dest_depth: Depth, src_index: Index, src_depth: Depth, rights: Rights, badge: Badge) [src_root] -> ();
    /// Moves a capability into an empty slot.
    CNodeMove = 23 CNode Move (dest_index: Index, dest_depth: Depth, src_index: Index, src_depth: Depth) [src_root] -> ();
    /// Moves a capability into an empty slot, with a new guard for a CNode. Capabilities with badges cannot be moved
    /// so.
    CNodeMutate = 24 CNode Mutate
        (dest_index: Index, dest_depth: Depth, src_index: Index, src_depth: Depth, badge: Badge) [src_root] -> ();
    /// Moves one capability from the pivot to the destination and one from the source to the pivot, each as
    /// `CNode_Mutate` does.
    CNodeRotate = 25 CNode Rotate
        (dest_index: Index, dest_depth: Depth, dest_badge: Badge, pivot_index: Index, pivot_depth: Depth, pivot_badge: Badge,
         src_index: Index, src_depth: Depth) [pivot_root, src_root] -> ();
    /// Saves the right to reply to the last caller in a slot.
    CNodeSaveCaller = 26 CNode SaveCaller (index: Index, depth: Depth) [] -> ();
    /// Makes a capability to an interrupt.
    IrqControlGet = 27 IRQControl Get (irq: Number, index: Index, depth: Depth) [root] -> ();
    /// Acknowledges an interrupt, so that the next one is delivered.
    IrqHandlerAck = 28 IRQHandler Ack () [] -> ();
    /// Sets the notification that an interrupt signals.
    IrqHandlerSetNotification = 29 IRQHandler SetNotification () [notification] -> ();
    /// Removes the notification of an interrupt.
    IrqHandlerClear = 30 IRQHandler Clear () [] -> ();
    /// Puts a thread into a domain.
    DomainSetSet = 31 DomainSet Set (domain: Number) [thread] -> ();
    /// Changes an entry of the schedule of domains.
    DomainSetScheduleConfigure = 32 DomainSet ScheduleConfigure (index: Number, domain: Number, duration: Number) [] -> ();
    /// Sets the entry with which the schedule of domains begins, and goes there.
    DomainSetScheduleSetStart = 33 DomainSet ScheduleSetStart (index: Number) [] -> ();
    /// Maps a page table at the topmost level of an address at which there is none yet.
    PageTableMap = 34 RISCV_PageTable Map (vaddr: Address, attributes: Flags) [vspace] -> ();
    /// Unmaps a page table.
    PageTableUnmap = 35 RISCV_PageTable Unmap () [] -> ();
    /// Maps a page, or changes the rights of its mapping.
    PageMap = 36 RISCV_Page Map (vaddr: Address, rights: Rights, attributes: Flags) [vspace] -> ();
    /// Unmaps a page.
    PageUnmap = 37 RISCV_Page Unmap () [] -> ();
    /// Returns a page's physical address.
    PageGetAddress = 38 RISCV_Page GetAddress () [] -> (physical_address);
    /// Makes an ASID pool of untyped memory of 4 KiB.
    AsidControlMakePool = 39 RISCV_ASIDControl MakePool (index: Index, depth: Depth) [untyped, root] -> ();
    /// Makes a page table an address space.
    AsidPoolAssign = 40 RISCV_ASIDPool Assign () [vspace] -> ();
    /// Makes a capability to an interrupt, triggered by a level or by an edge.
    IrqControlGetTrigger = 41 IRQControl GetTrigger (irq: Number, trigger: Number, index: Index, depth: Depth) [root] -> ();
    /// Gives a thread a SyscallBuffer (`abi/queue`), with places for so many requests, in frames of the same size whose
    /// capabilities are in consecutive slots, and the notification that signals responses; a capacity of 0 takes it
    /// away.
    TcbRegisterAsyncSyscall = 42 TCB RegisterAsyncSyscall
        (capacity: Number, first_frame: Index, num_frames: Number) [notification] -> ();
    /// Turns signals of the notification, which is bound to the thread, into user interrupts: while the thread runs
    /// they make it go on at the address, with the badge in `a0` and the interrupted address in `a7`. The address 0
    /// undoes that, and needs no capability. On machines that support it, bits of badges that are hints can arrive
    /// without the kernel, to which the hart answers with an interrupt at the vector. Returns in which way they do, and
    /// the number of system calls and faults of the thread since: 0 for not at all; 1 for stores of other threads, and
    /// a supervisor's external interrupt; 2 for their instructions `uipi_send`, and a user's software interrupt.
    TcbRegisterUserInterrupts = 43 TCB RegisterUserInterrupts
        (handler: Address, hints: Flags, vector: Address) [notification] -> (arrival, entries);
    /// Maps a page at the address of this address space, a store to which signals the notification: one that interrupts
    /// a thread, with a capability whose badge is one of its hints. The page is unmapped with the capability. The
    /// address 0 takes it away. Returns the index with which `uipi_send` does it without the kernel; 0 if stores do.
    PageTableMapSender = 44 RISCV_PageTable MapSender (vaddr: Address) [notification] -> (index);
}
