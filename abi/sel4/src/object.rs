//! Objects that retype makes, how large they are, and the kinds of capabilities.

use crate::error::numbered;

/// Bytes of a slot of a CNode, as a power of two (`seL4_SlotBits`).
pub const SLOT_BITS: usize = 5;
/// Bytes of a thread, as a power of two; large enough for the registers of the FPU (`seL4_TCBBits`).
pub const TCB_BITS: usize = 11;
/// Bytes of an endpoint, as a power of two (`seL4_EndpointBits`).
pub const ENDPOINT_BITS: usize = 4;
/// Bytes of a notification, as a power of two (`seL4_NotificationBits`).
pub const NOTIFICATION_BITS: usize = 5;
/// Bytes of an IPC buffer, as a power of two (`seL4_IPCBufferSizeBits`).
pub const IPC_BUFFER_BITS: usize = 10;
/// Bytes of a page, as a power of two (`seL4_PageBits`).
pub const PAGE_BITS: usize = 12;
/// Bytes of a page one level up, as a power of two (`seL4_LargePageBits`).
pub const MEGA_PAGE_BITS: usize = 21;
/// Bytes of a page two levels up, as a power of two (`seL4_HugePageBits`).
pub const GIGA_PAGE_BITS: usize = 30;
/// Bytes of a page table of any level, as a power of two (`seL4_PageTableBits`).
pub const PAGE_TABLE_BITS: usize = 12;
/// Bits of an address that one page table translates (`seL4_PageTableIndexBits`).
pub const PAGE_TABLE_INDEX_BITS: usize = 9;
/// Bytes of an ASID pool, as a power of two (`seL4_ASIDPoolBits`).
pub const ASID_POOL_BITS: usize = 12;
/// Number of ASIDs of a pool, as a power of two (`seL4_ASIDPoolIndexBits`).
pub const ASID_POOL_INDEX_BITS: usize = 9;
/// Maximum number of ASID pools, as a power of two (`seL4_NumASIDPoolsBits`).
pub const ASID_POOLS_BITS: usize = 7;
/// Bytes of the smallest untyped memory, as a power of two (`seL4_MinUntypedBits`).
pub const MINIMUM_UNTYPED_BITS: usize = 4;
/// Bytes of the largest untyped memory, as a power of two (`seL4_MaxUntypedBits`).
pub const MAXIMUM_UNTYPED_BITS: usize = 38;
/// Bits of a word and of a capability pointer (`seL4_WordBits`).
pub const WORD_BITS: usize = 64;

numbered! {
    /// Objects that `Untyped_Retype` can make.
    #[doc(alias = "seL4_ObjectType")]
    ObjectType:
    /// Smaller untyped memory; its size is given.
    Untyped = 0;
    /// A thread.
    Tcb = 1;
    /// A rendezvous point for messages.
    Endpoint = 2;
    /// A word of signals.
    Notification = 3;
    /// A table of capabilities; the number of slots is given.
    CapTable = 4;
    /// A page of 1 GiB.
    GigaPage = 5;
    /// A page of 4 KiB.
    Page = 6;
    /// A page of 2 MiB.
    MegaPage = 7;
    /// A page table of any level; one that has an ASID is an address space.
    PageTable = 8;
}

impl ObjectType {
    /// Returns its bytes, as a power of two; `given` is the argument of retype, which counts for two types only.
    #[inline]
    pub const fn size_bits(self, given: usize) -> usize {
        match self {
            ObjectType::Untyped => given,
            ObjectType::Tcb => TCB_BITS,
            ObjectType::Endpoint => ENDPOINT_BITS,
            ObjectType::Notification => NOTIFICATION_BITS,
            ObjectType::CapTable => given.saturating_add(SLOT_BITS),
            ObjectType::GigaPage => GIGA_PAGE_BITS,
            ObjectType::Page => PAGE_BITS,
            ObjectType::MegaPage => MEGA_PAGE_BITS,
            ObjectType::PageTable => PAGE_TABLE_BITS,
        }
    }

    /// Whether it can be made of device memory, which the kernel must not touch.
    #[inline]
    pub const fn may_be_device(self) -> bool {
        matches!(self, ObjectType::Untyped | ObjectType::Page | ObjectType::MegaPage | ObjectType::GigaPage)
    }
}

numbered! {
    /// Kinds of capabilities, with the numbers that [`DebugCapIdentify`](crate::DebugCall::DebugCapIdentify) returns.
    CapabilityTag:
    /// An empty slot.
    Null = 0;
    /// A page of any size.
    Frame = 1;
    /// Untyped memory.
    Untyped = 2;
    /// A page table.
    PageTable = 3;
    /// An endpoint.
    Endpoint = 4;
    /// A notification.
    Notification = 6;
    /// The right to reply, once.
    Reply = 8;
    /// A table of capabilities.
    CNode = 10;
    /// The right to make ASID pools.
    AsidControl = 11;
    /// A thread.
    Thread = 12;
    /// A pool of ASIDs.
    AsidPool = 13;
    /// The right to make handlers of interrupts.
    IrqControl = 14;
    /// One interrupt.
    IrqHandler = 16;
    /// A table, thread, endpoint or notification that is being deleted.
    Zombie = 18;
    /// The right to set domains.
    Domain = 20;
}
