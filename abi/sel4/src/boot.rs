//! Initial thread: capabilities in fixed slots, and a page that describes the rest.
//!
//! The thread starts at its entry point with the address of [`BootInfo`] in `a0`, zero in all other registers, the most
//! important priority and no stack. Information that does not fit into the page follows at [`EXTRA_OFFSET`] as chunks,
//! each with a [`ChunkHeader`].

use crate::configuration::MAXIMUM_BOOT_UNTYPEDS;

/// Slots of the initial CNode with fixed meanings. Those that the configuration does not have are empty.
pub mod slot {
    /// Always empty.
    pub const NULL: usize = 0;
    /// The initial thread.
    pub const THREAD: usize = 1;
    /// The initial CNode itself.
    pub const CNODE: usize = 2;
    /// The address space: its topmost page table.
    pub const ADDRESS_SPACE: usize = 3;
    /// The right to make handlers of interrupts.
    pub const IRQ_CONTROL: usize = 4;
    /// The right to make ASID pools.
    pub const ASID_CONTROL: usize = 5;
    /// The ASID pool of the initial thread's address space.
    pub const ASID_POOL: usize = 6;
    /// x86's ports; empty.
    pub const IO_PORT_CONTROL: usize = 7;
    /// An IOMMU; empty.
    pub const IO_SPACE: usize = 8;
    /// The page with [`BootInfo`](super::BootInfo).
    pub const BOOT_INFO: usize = 9;
    /// The page with the initial thread's IPC buffer.
    pub const IPC_BUFFER: usize = 10;
    /// The right to set domains.
    pub const DOMAIN: usize = 11;
    /// Arm's SMMU; empty.
    pub const SMMU_SID_CONTROL: usize = 12;
    /// Arm's SMMU; empty.
    pub const SMMU_CB_CONTROL: usize = 13;
    /// A scheduling context; empty without MCS.
    pub const SCHEDULING_CONTEXT: usize = 14;
    /// Arm's secure monitor; empty.
    pub const SMC: usize = 15;
    /// The first slot without a fixed meaning.
    pub const FIRST_FREE: usize = 16;

    /// Names of the fixed slots, in order.
    pub const NAMES: [&str; FIRST_FREE] = [
        "Null",
        "InitThreadTCB",
        "InitThreadCNode",
        "InitThreadVSpace",
        "IRQControl",
        "ASIDControl",
        "InitThreadASIDPool",
        "IOPortControl",
        "IOSpace",
        "BootInfoFrame",
        "InitThreadIPCBuffer",
        "Domain",
        "SMMUSIDControl",
        "SMMUCBControl",
        "InitThreadSC",
        "SMC",
    ];
}

/// Slots from `start` up to, but not including, `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[doc(alias = "seL4_SlotRegion")]
pub struct SlotRegion {
    /// The first slot.
    pub start: u64,
    /// The first slot after it.
    pub end: u64,
}

/// One untyped memory that the initial thread has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[doc(alias = "seL4_UntypedDesc")]
pub struct UntypedDescription {
    /// Its physical address.
    pub physical_address: u64,
    /// Its bytes, as a power of two.
    pub size_bits: u8,
    /// 1 for device memory, which the kernel neither clears nor uses; 0 for RAM.
    pub is_device: u8,
    /// Zero.
    pub padding: [u8; 6],
}

/// Information for the initial thread (`seL4_BootInfo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[doc(alias = "seL4_BootInfo")]
pub struct BootInfo {
    /// Bytes of all chunks that follow at [`EXTRA_OFFSET`].
    pub extra_length: u64,
    /// Core on which the thread started.
    pub node: u64,
    /// Number of cores.
    pub nodes: u64,
    /// Levels of an IOMMU's page tables; zero.
    pub io_page_table_levels: u64,
    /// Address at which the IPC buffer is mapped.
    pub ipc_buffer: u64,
    /// Empty slots of the initial CNode.
    pub empty: SlotRegion,
    /// Pages that several kernels share; none.
    pub shared_frames: SlotRegion,
    /// The pages of the thread's own image, in the order of their addresses.
    pub user_image_frames: SlotRegion,
    /// The page tables below the topmost one.
    pub user_image_paging: SlotRegion,
    /// IOMMU capabilities; none.
    pub io_space: SlotRegion,
    /// The pages with the chunks.
    pub extra_pages: SlotRegion,
    /// Slots of the initial CNode, as a power of two.
    pub cnode_size_bits: u64,
    /// The initial thread's domain.
    pub domain: u64,
    /// Untyped capabilities.
    pub untyped: SlotRegion,
    /// Their descriptions, in the same order. Programs of seL4 are compiled with a number of entries: this is the
    /// largest.
    pub untyped_list: [UntypedDescription; MAXIMUM_BOOT_UNTYPEDS],
}

/// Bytes from [`BootInfo`] to the first chunk.
pub const EXTRA_OFFSET: usize = 4096;
/// The chunk only fills space.
pub const CHUNK_PADDING: u64 = 0;
/// The chunk is the device tree.
pub const CHUNK_DEVICE_TREE: u64 = 6;

/// Header of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[doc(alias = "seL4_BootInfoHeader")]
pub struct ChunkHeader {
    /// Kind: [`CHUNK_PADDING`] or [`CHUNK_DEVICE_TREE`].
    pub id: u64,
    /// Its bytes, this header included.
    pub length: u64,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<BootInfo>() == 4088);
    assert!(size_of::<BootInfo>() <= EXTRA_OFFSET);
    assert!(offset_of!(BootInfo, ipc_buffer) == 32);
    assert!(offset_of!(BootInfo, empty) == 40);
    assert!(offset_of!(BootInfo, shared_frames) == 56);
    assert!(offset_of!(BootInfo, user_image_frames) == 72);
    assert!(offset_of!(BootInfo, user_image_paging) == 88);
    assert!(offset_of!(BootInfo, io_space) == 104);
    assert!(offset_of!(BootInfo, extra_pages) == 120);
    assert!(offset_of!(BootInfo, cnode_size_bits) == 136);
    assert!(offset_of!(BootInfo, domain) == 144);
    assert!(offset_of!(BootInfo, untyped) == 152);
    assert!(offset_of!(BootInfo, untyped_list) == 168);
    assert!(size_of::<UntypedDescription>() == 16);
    assert!(offset_of!(UntypedDescription, size_bits) == 8);
    assert!(offset_of!(UntypedDescription, is_device) == 9);
    assert!(size_of::<ChunkHeader>() == 16);
};
