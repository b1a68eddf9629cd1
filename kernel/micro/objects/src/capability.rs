//! The contents of a slot: a capability, packed into two words.
//!
//! Packing is private, so that no reference can be forged: a slot is a cell of [`Capability`] values that takes 16
//! bytes instead of the 24 that the compiler would choose.

use core::cell::Cell;

use abi_sel4::Rights;
use abi_sel4::object::{PAGE_BITS, PAGE_TABLE_INDEX_BITS};

use crate::Ref;
use crate::reference::UNIT;
use crate::types::{AsidPool, Endpoint, Notification, PageTable, Slot, TCB_SLOTS, Tcb};

/// The accesses that a frame capability allows to programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageRights {
    /// No access.
    None,
    /// Read.
    Read,
    /// Read and write.
    ReadWrite,
}

/// The size of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameSize {
    /// 4 KiB.
    Small = 0,
    /// 2 MiB.
    Mega = 1,
    /// 1 GiB.
    Giga = 2,
}

impl FrameSize {
    /// Returns the logarithm of the size in bytes.
    #[inline(always)]
    pub const fn bits(self) -> u32 {
        PAGE_BITS as u32 + PAGE_TABLE_INDEX_BITS as u32 * self as u32
    }
}

/// The location at which a page or a page table is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The ASID of the address space; not 0.
    pub asid: u16,
    /// The virtual address.
    pub address: u64,
}

/// An object that is partly destroyed after its last capability was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dying {
    /// A thread, whose own slots must be emptied.
    Thread(Ref<Tcb>),
    /// A CNode, whose slots must be emptied.
    CNode {
        /// The first slot.
        slots: Ref<Slot>,
        /// The logarithm of the number of slots.
        radix: u8,
    },
    /// An endpoint with waiting threads.
    Endpoint(Ref<Endpoint>),
    /// A notification with waiting threads.
    Notification(Ref<Notification>),
    /// A device's interrupt without a handler, whose slot must be emptied.
    Interrupt {
        /// Its number.
        irq: u16,
        /// The slot for its notification.
        slot: Ref<Slot>,
    },
}

impl Dying {
    /// Returns the object's slots: the first slot and their number.
    #[inline(always)]
    pub fn slots(self) -> Option<(Ref<Slot>, u64)> {
        match self {
            Dying::Thread(tcb) => Some((tcb.own_slot(0), TCB_SLOTS as u64)),
            Dying::CNode { slots, radix } => Some((slots, 1 << radix)),
            Dying::Interrupt { slot, .. } => Some((slot, 1)),
            Dying::Endpoint(_) | Dying::Notification(_) => None,
        }
    }
}

/// The neighbours of a dying object in its ring: the slots that hold their zombie capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// The next slot.
    pub next: Ref<Slot>,
    /// The previous slot.
    pub previous: Ref<Slot>,
}

/// A capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// No capability.
    Null,
    /// Memory.
    Untyped {
        /// Physical address.
        base: u64,
        /// Logarithm of the size in bytes.
        bits: u8,
        /// Whether the memory is device memory.
        device: bool,
        /// Number of bytes used by objects, from the beginning: the watermark.
        used: u64,
    },
    /// An endpoint, at which threads exchange messages.
    Endpoint {
        /// The endpoint.
        endpoint: Ref<Endpoint>,
        /// The badge, which receivers get with each message.
        badge: u64,
        /// The rights of this capability.
        rights: Rights,
    },
    /// A word of signals.
    Notification {
        /// The notification.
        notification: Ref<Notification>,
        /// The badge: the signals that are set through this capability.
        badge: u64,
        /// The rights of this capability.
        rights: Rights,
        /// The number of the sender page that belongs to this capability.
        page: Option<u8>,
    },
    /// A reply capability: the right to answer a thread once.
    Reply {
        /// The thread that waits for the answer.
        caller: Ref<Tcb>,
        /// Whether it is the thread's master reply capability, from which the others are derived, and conveys no right.
        master: bool,
        /// Whether the answer may carry capabilities (the grant right).
        grant: bool,
    },
    /// A CNode: a table of slots.
    CNode {
        /// The first slot.
        slots: Ref<Slot>,
        /// Logarithm of the number of slots.
        radix: u8,
        /// Number of the guard's bits.
        guard_bits: u8,
        /// Value of the guard.
        guard: u64,
    },
    /// A thread.
    Thread {
        /// The thread.
        tcb: Ref<Tcb>,
    },
    /// The right to make IRQ handler capabilities.
    IrqControl,
    /// The right to handle an interrupt.
    IrqHandler {
        /// Number of the interrupt.
        irq: u16,
    },
    /// A zombie: an object that is being destroyed. The slot that holds this capability contains the number of the
    /// object's slots that are still to be emptied ([`Slot::left`]).
    Remains {
        /// The object.
        object: Dying,
        /// Its neighbours among the objects that are destroyed together.
        ring: Ring,
    },
    /// The right to set domains.
    Domain,
    /// A frame: a page of memory.
    Frame {
        /// Physical address.
        base: u64,
        /// Its size.
        size: FrameSize,
        /// The rights of this capability.
        rights: PageRights,
        /// Whether the memory is device memory.
        device: bool,
        /// The location at which this capability has mapped it.
        mapping: Option<Mapping>,
    },
    /// A page table, perhaps the root of an address space.
    PageTable {
        /// The table.
        table: Ref<PageTable>,
        /// The location at which it is mapped; a root is mapped at address 0.
        mapping: Option<Mapping>,
    },
    /// The right to make ASID pools.
    AsidControl,
    /// An ASID pool: a set of address-space identifiers.
    AsidPool {
        /// The pool.
        pool: Ref<AsidPool>,
        /// Its first identifier.
        base: u16,
    },
}

/// The numbers of [`CapabilityTag`](abi_sel4::CapabilityTag) as constants, for use in patterns.
#[allow(missing_docs, reason = "the names are those of the capabilities")]
pub mod tag {
    use abi_sel4::CapabilityTag;

    pub const NULL: u64 = CapabilityTag::Null as u64;
    pub const FRAME: u64 = CapabilityTag::Frame as u64;
    pub const UNTYPED: u64 = CapabilityTag::Untyped as u64;
    pub const PAGE_TABLE: u64 = CapabilityTag::PageTable as u64;
    pub const ENDPOINT: u64 = CapabilityTag::Endpoint as u64;
    pub const NOTIFICATION: u64 = CapabilityTag::Notification as u64;
    pub const REPLY: u64 = CapabilityTag::Reply as u64;
    pub const CNODE: u64 = CapabilityTag::CNode as u64;
    pub const ASID_CONTROL: u64 = CapabilityTag::AsidControl as u64;
    pub const THREAD: u64 = CapabilityTag::Thread as u64;
    pub const ASID_POOL: u64 = CapabilityTag::AsidPool as u64;
    pub const IRQ_CONTROL: u64 = CapabilityTag::IrqControl as u64;
    pub const IRQ_HANDLER: u64 = CapabilityTag::IrqHandler as u64;
    pub const ZOMBIE: u64 = CapabilityTag::Zombie as u64;
    pub const DOMAIN: u64 = CapabilityTag::Domain as u64;
}

const TAG_MASK: u64 = 31;
/// The kinds of zombies; smaller numbers are radixes of CNodes.
mod remains {
    pub const THREAD: u64 = 0xff;
    pub const ENDPOINT: u64 = 0xfe;
    pub const NOTIFICATION: u64 = 0xfd;
    pub const INTERRUPT: u64 = 0xfc;
}

/// A packed capability. The first word contains the tag (bits 0 to 4), small fields from bit 8 on, and a reference in
/// the upper half; the second word contains the large field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Packed([u64; 2]);

impl Capability {
    /// Returns the number of this kind of capability, as in the answer of the debugging call.
    #[inline]
    pub fn tag(&self) -> u64 {
        self.pack().0[0] & TAG_MASK
    }

    /// Packs the capability.
    #[inline(always)]
    pub(crate) fn pack(self) -> Packed {
        let reference = |raw: u32| u64::from(raw) << 32;
        Packed(match self {
            Capability::Null => [tag::NULL, 0],
            Capability::Untyped { base, bits, device, used } => {
                [tag::UNTYPED | u64::from(bits) << 8 | u64::from(device) << 16 | used >> 4 << 24, base]
            }
            Capability::Endpoint { endpoint, badge, rights } => {
                [tag::ENDPOINT | rights.word() << 8 | reference(endpoint.raw()), badge]
            }
            Capability::Notification { notification, badge, rights, page } => {
                let small = rights.word() << 8 | page.map_or(0, |page| u64::from(page) + 1) << 16;
                [tag::NOTIFICATION | small | reference(notification.raw()), badge]
            }
            Capability::Reply { caller, master, grant } => {
                [tag::REPLY | u64::from(master) << 8 | u64::from(grant) << 9 | reference(caller.raw()), 0]
            }
            Capability::CNode { slots, radix, guard_bits, guard } => {
                let small = u64::from(radix) << 8 | u64::from(guard_bits) << 16;
                [tag::CNODE | small | reference(slots.raw()), high_bits(guard, guard_bits.into())]
            }
            Capability::Thread { tcb } => [tag::THREAD | reference(tcb.raw()), 0],
            Capability::IrqControl => [tag::IRQ_CONTROL, 0],
            Capability::IrqHandler { irq } => [tag::IRQ_HANDLER, u64::from(irq)],
            Capability::Remains { object, ring } => {
                let (small, object) = match object {
                    Dying::Thread(tcb) => (remains::THREAD, tcb.raw()),
                    Dying::CNode { slots, radix } => (u64::from(radix), slots.raw()),
                    Dying::Endpoint(endpoint) => (remains::ENDPOINT, endpoint.raw()),
                    Dying::Notification(notification) => (remains::NOTIFICATION, notification.raw()),
                    Dying::Interrupt { irq, slot } => (remains::INTERRUPT | u64::from(irq) << 8, slot.raw()),
                };
                let ring = u64::from(ring.previous.raw()) | reference(ring.next.raw());
                [tag::ZOMBIE | small << 8 | reference(object), ring]
            }
            Capability::Domain => [tag::DOMAIN, 0],
            Capability::Frame { base, size, rights, device, mapping } => {
                let (asid, address) = mapping.map_or((0, 0), |mapping| (mapping.asid, mapping.address));
                let small =
                    (size as u64) << 8 | (rights as u64) << 12 | u64::from(device) << 16 | u64::from(asid) << 32;
                [tag::FRAME | small, base >> 12 | address >> 12 << 32]
            }
            Capability::PageTable { table, mapping } => {
                let (asid, address) = mapping.map_or((0, 0), |mapping| (mapping.asid, mapping.address));
                [tag::PAGE_TABLE | u64::from(asid) << 8 | reference(table.raw()), address]
            }
            Capability::AsidControl => [tag::ASID_CONTROL, 0],
            Capability::AsidPool { pool, base } => [tag::ASID_POOL | u64::from(base) << 8 | reference(pool.raw()), 0],
        })
    }
}

impl Packed {
    /// Unpacks the capability. A value without a valid packing reads as no capability.
    #[inline(always)]
    pub(crate) fn unpack(self) -> Capability {
        self.try_unpack().unwrap_or(Capability::Null)
    }

    #[inline(always)]
    fn try_unpack(self) -> Option<Capability> {
        let Packed([first, second]) = self;
        let reference = (first >> 32) as u32;
        let byte = (first >> 8) as u8;
        let rights = Rights::from_word(byte.into());
        let mapping = |asid: u16, address| (asid != 0).then_some(Mapping { asid, address });
        Some(match first & TAG_MASK {
            tag::UNTYPED => {
                Capability::Untyped { base: second, bits: byte, device: first >> 16 & 1 != 0, used: first >> 24 << 4 }
            }
            tag::ENDPOINT => Capability::Endpoint { endpoint: Ref::from_raw(reference)?, badge: second, rights },
            tag::NOTIFICATION => {
                let page = (first >> 16 & 0x1ff).checked_sub(1).map(|page| page as u8);
                Capability::Notification { notification: Ref::from_raw(reference)?, badge: second, rights, page }
            }
            tag::REPLY => {
                Capability::Reply { caller: Ref::from_raw(reference)?, master: byte & 1 != 0, grant: byte & 2 != 0 }
            }
            tag::CNODE => Capability::CNode {
                slots: Ref::from_raw(reference)?,
                radix: byte & 63,
                guard_bits: (first >> 16) as u8 & 63,
                guard: low_bits(second, first >> 16 & 63),
            },
            tag::THREAD => Capability::Thread { tcb: Ref::from_raw(reference)? },
            tag::IRQ_CONTROL => Capability::IrqControl,
            tag::IRQ_HANDLER => Capability::IrqHandler { irq: second as u16 },
            tag::ZOMBIE => Capability::Remains {
                object: match u64::from(byte) {
                    remains::THREAD => Dying::Thread(Ref::from_raw(reference)?),
                    remains::ENDPOINT => Dying::Endpoint(Ref::from_raw(reference)?),
                    remains::NOTIFICATION => Dying::Notification(Ref::from_raw(reference)?),
                    remains::INTERRUPT => {
                        Dying::Interrupt { irq: (first >> 16) as u16, slot: Ref::from_raw(reference)? }
                    }
                    _ => Dying::CNode { slots: Ref::from_raw(reference)?, radix: byte & 63 },
                },
                ring: Ring { next: Ref::from_raw((second >> 32) as u32)?, previous: Ref::from_raw(second as u32)? },
            },
            tag::DOMAIN => Capability::Domain,
            tag::FRAME => Capability::Frame {
                base: (second & 0xffff_ffff) << 12,
                size: frame_size(byte),
                rights: frame_rights(byte),
                device: first >> 16 & 1 != 0,
                mapping: mapping(reference as u16, second >> 32 << 12),
            },
            tag::PAGE_TABLE => Capability::PageTable {
                table: Ref::from_raw(reference)?,
                mapping: mapping((first >> 8) as u16, second),
            },
            tag::ASID_CONTROL => Capability::AsidControl,
            tag::ASID_POOL => Capability::AsidPool { pool: Ref::from_raw(reference)?, base: (first >> 8) as u16 },
            _ => return None,
        })
    }
}

/// Extracts the size from the small fields of a frame capability.
#[inline(always)]
fn frame_size(byte: u8) -> FrameSize {
    match byte & 15 {
        0 => FrameSize::Small,
        1 => FrameSize::Mega,
        _ => FrameSize::Giga,
    }
}

/// Extracts the rights from the small fields of a frame capability.
#[inline(always)]
fn frame_rights(byte: u8) -> PageRights {
    match byte >> 4 {
        2 => PageRights::ReadWrite,
        1 => PageRights::Read,
        _ => PageRights::None,
    }
}

/// The contents of [`Capability::CNode`].
#[derive(Clone, Copy, Debug)]
pub struct CNode {
    /// The first slot.
    pub slots: Ref<Slot>,
    /// Logarithm of the number of slots.
    pub radix: u64,
    /// Number of the guard's bits; at most 63.
    pub guard_bits: u64,
    /// The guard in the highest bits, its position in an address that is resolved.
    pub high_guard: u64,
}

impl CNode {
    /// Makes a node with a guard of at most 63 bits.
    #[inline]
    pub fn new(slots: Ref<Slot>, radix: u8, guard_bits: u8, guard: u64) -> CNode {
        let guard_bits = u64::from(guard_bits & 63);
        CNode { slots, radix: u64::from(radix & 63), guard_bits, high_guard: high_bits(guard, guard_bits) }
    }

    /// Returns the guard as a number.
    #[inline]
    pub fn guard(&self) -> u64 {
        low_bits(self.high_guard, self.guard_bits)
    }
}

/// Moves the lowest `count` bits, at most 63, to the highest places.
#[inline(always)]
fn high_bits(value: u64, count: u64) -> u64 {
    value << 1 << (63 - count)
}

/// Returns the highest `count` bits, at most 63, as a number.
#[inline(always)]
fn low_bits(value: u64, count: u64) -> u64 {
    value >> 1 >> (63 - count)
}

/// An object that is deleted in one step: a page, or an unmapped page table, which is as large as a small page.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Physical address.
    pub base: u64,
    /// Size of the page.
    pub size: FrameSize,
    /// The location at which a page is mapped.
    pub mapping: Option<Mapping>,
}

/// A page of 4 KiB.
#[derive(Clone, Copy, Debug)]
pub struct SmallPage {
    /// Physical address.
    pub base: u64,
    /// The accesses that the capability allows.
    pub rights: PageRights,
    /// The location at which it is mapped.
    pub mapping: Option<Mapping>,
}

/// A cell that holds a capability.
#[repr(transparent)]
pub struct CapabilityCell(Cell<Packed>);

impl CapabilityCell {
    /// Unpacks the capability. Not inlined: unpacking takes several hundred bytes of code.
    #[inline(never)]
    pub fn get(&self) -> Capability {
        self.0.get().unpack()
    }

    /// As [`get`](CapabilityCell::get), for ways whose instructions count: code that is about one kind of capability
    /// unpacks only that.
    #[inline(always)]
    pub fn get_here(&self) -> Capability {
        self.0.get().unpack()
    }

    /// Returns the kind of the capability: a constant of [`tag`].
    #[inline(always)]
    pub fn tag(&self) -> u64 {
        self.0.get().0[0] & TAG_MASK
    }

    /// Returns the CNode in the cell, if there is one. This function and the following ones exist beside
    /// [`get`](CapabilityCell::get) because almost every system call uses them.
    #[inline(always)]
    pub fn cnode(&self) -> Option<CNode> {
        let Packed([first, high_guard]) = self.0.get();
        if first & TAG_MASK != tag::CNODE {
            return None;
        }
        let slots = Ref::from_raw((first >> 32) as u32)?;
        Some(CNode { slots, radix: first >> 8 & 63, guard_bits: first >> 16 & 63, high_guard })
    }

    /// Returns the endpoint in the cell, with badge and rights, if there is one.
    #[inline(always)]
    pub fn endpoint(&self) -> Option<(Ref<Endpoint>, u64, Rights)> {
        let Packed([first, badge]) = self.0.get();
        if first & TAG_MASK != tag::ENDPOINT {
            return None;
        }
        Some((Ref::from_raw((first >> 32) as u32)?, badge, Rights::from_word(first >> 8)))
    }

    /// Returns the page of ordinary memory in the cell: physical address, size and rights, if there is one.
    #[inline(always)]
    pub fn memory(&self) -> Option<(u64, FrameSize, PageRights)> {
        let Packed([first, second]) = self.0.get();
        if first & (TAG_MASK | 1 << 16) != tag::FRAME {
            return None;
        }
        let byte = (first >> 8) as u8;
        Some(((second & 0xffff_ffff) << 12, frame_size(byte), frame_rights(byte)))
    }

    /// Returns the page of 4 KiB in the cell, if there is one.
    #[inline(always)]
    pub fn small_page(&self) -> Option<SmallPage> {
        let Packed([first, second]) = self.0.get();
        // The size is in the four bits above the kind.
        if first & (TAG_MASK | 15 << 8) != tag::FRAME | (FrameSize::Small as u64) << 8 {
            return None;
        }
        let asid = (first >> 32) as u16;
        let mapping = (asid != 0).then_some(Mapping { asid, address: second >> 32 << 12 });
        Some(SmallPage { base: (second & 0xffff_ffff) << 12, rights: frame_rights((first >> 8) as u8), mapping })
    }

    /// Notes the location at which the page in the cell is mapped; the cell must hold a page.
    #[inline(always)]
    pub fn set_page_mapping(&self, mapping: Option<Mapping>) {
        let Packed([first, second]) = self.0.get();
        let (asid, address) = mapping.map_or((0, 0), |mapping| (mapping.asid, mapping.address));
        let low = 0xffff_ffff;
        self.0.set(Packed([first & low | u64::from(asid) << 32, second & low | address >> 12 << 32]));
    }

    /// Returns the page or unmapped page table in the cell, if there is one.
    #[inline(always)]
    pub fn page(&self) -> Option<Page> {
        let Packed([first, second]) = self.0.get();
        match first & TAG_MASK {
            tag::FRAME => {
                let asid = (first >> 32) as u16;
                let mapping = (asid != 0).then_some(Mapping { asid, address: second >> 32 << 12 });
                Some(Page { base: (second & 0xffff_ffff) << 12, size: frame_size((first >> 8) as u8), mapping })
            }
            tag::PAGE_TABLE if (first >> 8) as u16 == 0 => {
                Some(Page { base: (first >> 32) * UNIT, size: FrameSize::Small, mapping: None })
            }
            _ => None,
        }
    }

    /// Returns the untyped memory in the cell: physical address and logarithm of the size, if there is any.
    #[inline(always)]
    pub fn untyped(&self) -> Option<(u64, u8)> {
        let Packed([first, base]) = self.0.get();
        (first & TAG_MASK == tag::UNTYPED).then_some((base, (first >> 8) as u8))
    }

    /// Returns the notification in the cell, with its badge, if there is one and the capability has the write right.
    #[inline(always)]
    pub fn signal(&self) -> Option<(Ref<Notification>, u64)> {
        let Packed([first, badge]) = self.0.get();
        let may_signal = Rights::WRITE.word() << 8;
        if first & (TAG_MASK | may_signal) != tag::NOTIFICATION | may_signal {
            return None;
        }
        Some((Ref::from_raw((first >> 32) as u32)?, badge))
    }

    /// Returns the notification in the cell, if there is one and the capability has the read right.
    #[inline(always)]
    pub fn source_of_signals(&self) -> Option<Ref<Notification>> {
        let Packed([first, _]) = self.0.get();
        let may_wait = Rights::READ.word() << 8;
        if first & (TAG_MASK | may_wait) != tag::NOTIFICATION | may_wait {
            return None;
        }
        Ref::from_raw((first >> 32) as u32)
    }

    /// Returns the thread that the reply capability in the cell answers, and whether it has the grant right, if there
    /// is one.
    #[inline(always)]
    pub fn reply(&self) -> Option<(Ref<Tcb>, bool)> {
        let Packed([first, _]) = self.0.get();
        // A master reply capability is not a right to answer.
        if first & (TAG_MASK | 1 << 8) != tag::REPLY {
            return None;
        }
        Some((Ref::from_raw((first >> 32) as u32)?, first >> 9 & 1 != 0))
    }

    /// Returns the page table in the cell and its ASID, if there is one and it is mapped.
    #[inline(always)]
    pub fn mapped_table(&self) -> Option<(Ref<PageTable>, u16)> {
        let Packed([first, _]) = self.0.get();
        let asid = (first >> 8) as u16;
        if first & TAG_MASK != tag::PAGE_TABLE || asid == 0 {
            return None;
        }
        Some((Ref::from_raw((first >> 32) as u32)?, asid))
    }

    /// Replaces the capability.
    #[inline(always)]
    pub fn set(&self, capability: Capability) {
        self.0.set(capability.pack());
    }

    /// Returns whether the cell contains no capability.
    #[inline(always)]
    pub fn is_null(&self) -> bool {
        self.0.get().0[0] & TAG_MASK == tag::NULL
    }

    /// Copies without unpacking.
    #[inline(always)]
    pub fn copy_from(&self, other: &CapabilityCell) {
        self.0.set(other.0.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(capability: Capability) {
        assert_eq!(capability.pack().unpack(), capability);
    }

    #[test]
    fn every_kind_comes_back_as_it_was() {
        let raw = |raw| raw;
        round(Capability::Null);
        for used in [0, 16, 1 << 38] {
            round(Capability::Untyped { base: 0x7f_c000_0000, bits: 38, device: true, used });
        }
        let endpoint = Ref::from_raw(raw(0xffff_ffff)).unwrap();
        round(Capability::Endpoint { endpoint, badge: u64::MAX, rights: Rights::ALL });
        let notification = Ref::from_raw(1).unwrap();
        for page in [None, Some(0), Some(255)] {
            round(Capability::Notification { notification, badge: 5, rights: Rights::WRITE, page });
        }
        let caller = Ref::from_raw(raw(0x8000_0040)).unwrap();
        for (master, grant) in [(true, false), (false, true), (true, true)] {
            round(Capability::Reply { caller, master, grant });
        }
        let slots = Ref::from_raw(2).unwrap();
        round(Capability::CNode { slots, radix: 33, guard_bits: 58, guard: (1 << 58) - 1 });
        round(Capability::CNode { slots, radix: 1, guard_bits: 63, guard: 1 << 62 });
        round(Capability::Thread { tcb: caller });
        round(Capability::IrqControl);
        round(Capability::IrqHandler { irq: 1023 });
        let ring = Ring { next: slots, previous: Ref::from_raw(u32::MAX).unwrap() };
        for object in [
            Dying::CNode { slots, radix: 33 },
            Dying::Thread(caller),
            Dying::Endpoint(endpoint),
            Dying::Notification(notification),
            Dying::Interrupt { irq: 1023, slot: slots },
        ] {
            round(Capability::Remains { object, ring });
        }
        round(Capability::Domain);
        for mapping in [None, Some(Mapping { asid: 65535, address: 0x3f_ffff_e000 })] {
            for size in [FrameSize::Small, FrameSize::Mega, FrameSize::Giga] {
                for rights in [PageRights::None, PageRights::Read, PageRights::ReadWrite] {
                    round(Capability::Frame { base: 0x7f_ffff_f000, size, rights, device: true, mapping });
                }
            }
            round(Capability::PageTable { table: Ref::from_raw(0x8000_0100).unwrap(), mapping });
        }
        round(Capability::AsidControl);
        round(Capability::AsidPool { pool: Ref::from_raw(0x8000_0100).unwrap(), base: 127 << 9 });
    }

    #[test]
    fn any_two_words_unpack_to_none_or_a_valid_capability() {
        for tag in 0..32 {
            assert!(matches!(
                Packed([tag, 0]).unpack(),
                Capability::Null
                    | Capability::Untyped { .. }
                    | Capability::IrqControl
                    | Capability::IrqHandler { .. }
                    | Capability::Domain
                    | Capability::Frame { .. }
                    | Capability::AsidControl
            ));
        }
    }
}
