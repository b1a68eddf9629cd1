//! Address spaces: page tables, pages, and ASIDs.
//!
//! An address space is a root page table with an identifier (ASID) from an ASID pool. Capabilities to pages and page
//! tables contain ASID and address of their mapping, never a table, so that the lookup of a mapping finds out that its
//! table was deleted.

use core::sync::atomic::Ordering::Relaxed;

use abi_sel4::configuration::{PAGE_TABLE_LEVELS, USER_TOP};
use abi_sel4::message::EXECUTE_NEVER;
use abi_sel4::object::{self, ASID_POOL_INDEX_BITS};
use abi_sel4::{FailedLookup, Invocation, InvocationError, Operand, Rights};
use hal_api::{Flush, HartSet, Machine as _, Scope};
use objects::{AsidPool, Capability, FrameSize, Mapping, PageRights, PageTable, Ref, Slot, claim, physical_of};
use platform::Machine;

use crate::invocation::{Arguments, Done, Preempted};
use crate::kernel::{Kernel, POOLS};
use crate::message::set_message_register;
use crate::{capability, cspace, derivation};

/// Number of bits of an offset in a page.
pub(crate) const PAGE_BITS: u32 = object::PAGE_BITS as u32;
/// Number of bits of an address that a table translates.
pub(crate) const INDEX_BITS: u32 = object::PAGE_TABLE_INDEX_BITS as u32;
/// Number of entries of a table; the upper half of a root table belongs to the kernel.
const ENTRIES: usize = 1 << object::PAGE_TABLE_INDEX_BITS;
/// Number of ASIDs of a pool.
const IDENTIFIERS: usize = 1 << ASID_POOL_INDEX_BITS;
/// Logarithm of the size of a pool, as in an untyped capability.
const POOL_BITS: u8 = object::ASID_POOL_BITS as u8;
/// Number of bits of an address that one entry of the root table covers.
const TOPMOST_BITS: u32 = PAGE_BITS + (PAGE_TABLE_LEVELS as u32 - 1) * INDEX_BITS;

/// Page-table entries in the machine's format (privileged architecture, "Sv39").
mod entry {
    pub const VALID: u64 = 1 << 0;
    pub const READ: u64 = 1 << 1;
    pub const WRITE: u64 = 1 << 2;
    pub const EXECUTE: u64 = 1 << 3;
    pub const USER: u64 = 1 << 4;
    pub const ACCESSED: u64 = 1 << 6;
    pub const DIRTY: u64 = 1 << 7;
    /// Reserved for software: while the consistency checker runs, marks a mapping with a capability.
    pub const KNOWN: u64 = 1 << 8;
    /// In an entry without VALID, whose other bits the machine ignores: marks the place of a sender page whose
    /// capability was deleted.
    pub const REVOKED: u64 = 1 << 9;
    pub const LEAF: u64 = READ | WRITE | EXECUTE;

    pub const fn table(physical: u64) -> u64 {
        physical >> 12 << 10 | VALID
    }

    pub const fn address(entry: u64) -> u64 {
        (entry >> 10 & ((1 << 44) - 1)) << 12
    }

    /// Returns whether the entry points to another table.
    pub const fn is_table(entry: u64) -> bool {
        entry & (VALID | LEAF) == VALID
    }
}

/// Whether instructions can be fetched from a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetches {
    /// Instruction fetches are allowed.
    Allowed,
    /// Instruction fetches are forbidden.
    Forbidden,
}

/// Makes the entry for a page.
#[inline]
pub(crate) fn page_entry(physical: u64, rights: PageRights, fetches: Fetches) -> u64 {
    let read = if rights == PageRights::None { 0 } else { entry::READ };
    let write = if rights == PageRights::ReadWrite { entry::WRITE } else { 0 };
    let execute = if fetches == Fetches::Allowed { entry::EXECUTE } else { 0 };
    if read | write | execute == 0 {
        return 0;
    }
    physical >> 12 << 10 | read | write | execute | entry::USER | entry::VALID | entry::ACCESSED | entry::DIRTY
}

/// A place in a table: the table, the index, and the number of bits of an address that one entry covers.
#[derive(Clone, Copy, Debug)]
pub struct EntryPlace {
    table: Ref<PageTable>,
    index: usize,
    bits: u32,
}

impl EntryPlace {
    #[inline(always)]
    fn get(self) -> u64 {
        self.table.entries[self.index % ENTRIES].load(Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set(self, value: u64) {
        self.table.entries[self.index % ENTRIES].store(value, Relaxed);
    }

    /// Returns the place of a small page in its table.
    #[inline(always)]
    pub(crate) fn of_page(table: Ref<PageTable>, address: u64) -> EntryPlace {
        EntryPlace { table, index: (address >> PAGE_BITS) as usize % ENTRIES, bits: PAGE_BITS }
    }

    /// Returns whether the entry translates an address.
    #[inline(always)]
    pub(crate) fn is_valid(self) -> bool {
        self.get() & entry::VALID != 0
    }

    /// Returns whether the entry, which is in a table of the last level, is that of the page at a physical address.
    #[inline(always)]
    pub(crate) fn is_page_at(self, base: u64) -> bool {
        let found = self.get();
        found & entry::VALID != 0 && entry::address(found) == base
    }

    /// For the consistency checker: marks a mapping with a capability.
    pub fn mark(self) {
        self.set(self.get() | entry::KNOWN);
    }
}

/// Walks the tables from a root to the last one that exists for an address.
#[inline(always)]
fn walk(root: Ref<PageTable>, address: u64) -> EntryPlace {
    let mut bits = TOPMOST_BITS;
    let mut table = root;
    loop {
        let index = (address >> bits) as usize % ENTRIES;
        let place = EntryPlace { table, index, bits };
        let found = place.get();
        if bits == PAGE_BITS || !entry::is_table(found) {
            return place;
        }
        table = claim(entry::address(found));
        bits -= INDEX_BITS;
    }
}

/// A decoded invocation.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the fields are the invocations' own")]
pub enum VSpaceCall {
    MapTable { capability: Capability, place: EntryPlace, entry: u64 },
    UnmapTable { table: Ref<PageTable>, mapping: Option<Mapping> },
    MapPage { capability: Capability, mapping: Mapping, place: EntryPlace, entry: u64 },
    UnmapPage { base: u64, size: FrameSize, mapping: Option<Mapping> },
    GetAddress { base: u64 },
    MakePool { untyped: Ref<Slot>, base: u64, bits: u8, slot: Ref<Slot>, index: usize },
    Assign { pool: Ref<AsidPool>, index: usize, asid: u16, slot: Ref<Slot>, table: Ref<PageTable> },
}

impl Kernel {
    /// Returns the pool of an ASID.
    #[inline(always)]
    fn pool_of(&self, asid: u16) -> Option<Ref<AsidPool>> {
        self.asid_pools[usize::from(asid >> ASID_POOL_INDEX_BITS) % POOLS].get()
    }

    /// Returns the root of the address space with this ASID.
    #[inline(always)]
    pub(crate) fn root_of(&self, asid: u16) -> Option<Ref<PageTable>> {
        self.pool_of(asid)?.roots[usize::from(asid) % IDENTIFIERS].get()
    }

    /// Checks that a slot holds the root of a live address space; returns the root and its ASID.
    #[inline(always)]
    fn decode_root(&self, slot: Ref<Slot>) -> Result<(Ref<PageTable>, u16), InvocationError> {
        let (table, asid) = slot.capability.mapped_table().ok_or(InvocationError::InvalidCapability(1))?;
        match self.root_of(asid) {
            None => {
                Err(InvocationError::FailedLookup { operand: Operand::Destination, failure: FailedLookup::InvalidRoot })
            }
            Some(root) if root != table => Err(InvocationError::InvalidCapability(1)),
            Some(root) => Ok((root, asid)),
        }
    }

    /// Decodes an invocation of a page table.
    pub(crate) fn decode_table(
        &self,
        invocation: Option<Invocation>,
        slot: Ref<Slot>,
        table: Ref<PageTable>,
        mapping: Option<Mapping>,
        arguments: &Arguments,
    ) -> Result<VSpaceCall, InvocationError> {
        match invocation {
            Some(Invocation::PageTableUnmap) => {
                if !derivation::is_last(slot) {
                    return Err(InvocationError::RevokeFirst);
                }
                if mapping.is_some_and(|mapping| self.root_of(mapping.asid) == Some(table)) {
                    return Err(InvocationError::RevokeFirst);
                }
                return Ok(VSpaceCall::UnmapTable { table, mapping });
            }
            Some(Invocation::PageTableMap) => {}
            _ => return Err(InvocationError::IllegalOperation),
        }
        let [address, _] = arguments.at_least::<2>()?;
        let root = arguments.capability(0)?;
        if mapping.is_some() {
            return Err(InvocationError::InvalidCapability(0));
        }
        // As in seL4, the root's kind is checked before the address, and its liveness after.
        if !matches!(root.capability.get_here(), Capability::PageTable { mapping: Some(_), .. }) {
            return Err(InvocationError::InvalidCapability(1));
        }
        if address >= USER_TOP {
            return Err(InvocationError::InvalidArgument(0));
        }
        let (root, asid) = self.decode_root(root)?;
        let place = walk(root, address);
        if place.bits == PAGE_BITS || place.get() & entry::VALID != 0 {
            return Err(InvocationError::DeleteFirst);
        }
        let mapping = Some(Mapping { asid, address: address & !((1 << place.bits) - 1) });
        Ok(VSpaceCall::MapTable {
            capability: Capability::PageTable { table, mapping },
            place,
            entry: entry::table(table.physical()),
        })
    }

    /// Decodes an invocation of a frame.
    #[inline(always)]
    pub(crate) fn decode_frame(
        &self,
        invocation: Option<Invocation>,
        frame: Capability,
        arguments: &Arguments,
    ) -> Result<VSpaceCall, InvocationError> {
        let Capability::Frame { base, size, rights, device, mapping } = frame else {
            return Err(InvocationError::IllegalOperation);
        };
        match invocation {
            Some(Invocation::PageUnmap) => return Ok(VSpaceCall::UnmapPage { base, size, mapping }),
            Some(Invocation::PageGetAddress) => return Ok(VSpaceCall::GetAddress { base }),
            Some(Invocation::PageMap) => {}
            _ => return Err(InvocationError::IllegalOperation),
        }
        let [address, mask, attributes] = arguments.at_least::<3>()?;
        let (root, asid) = self.decode_root(arguments.capability(0)?)?;
        let last = address.wrapping_add((1 << size.bits()) - 1);
        if last >= USER_TOP || last < address {
            return Err(InvocationError::InvalidArgument(0));
        }
        if address & ((1 << size.bits()) - 1) != 0 {
            return Err(InvocationError::AlignmentError);
        }
        let place = walk(root, address);
        if place.bits != size.bits() {
            let failure = FailedLookup::MissingCapability { bits_left: place.bits.into() };
            return Err(InvocationError::FailedLookup { operand: Operand::Destination, failure });
        }
        match mapping {
            Some(mapping) => {
                if mapping.asid != asid {
                    return Err(InvocationError::InvalidCapability(1));
                }
                if mapping.address != address {
                    return Err(InvocationError::InvalidArgument(0));
                }
                if entry::is_table(place.get()) {
                    return Err(InvocationError::DeleteFirst);
                }
            }
            None if place.get() & entry::VALID != 0 => return Err(InvocationError::DeleteFirst),
            None => {}
        }
        let allowed = capability::restrict_page(rights, Rights::from_word(mask));
        let fetches = if attributes & EXECUTE_NEVER == 0 { Fetches::Allowed } else { Fetches::Forbidden };
        let mapping = Mapping { asid, address };
        Ok(VSpaceCall::MapPage {
            capability: Capability::Frame { base, size, rights, device, mapping: Some(mapping) },
            mapping,
            place,
            entry: page_entry(base, allowed, fetches),
        })
    }

    /// Checks that a small page can be mapped at an address in the address space whose root is in a slot.
    pub(crate) fn decode_page(&self, space: Ref<Slot>, address: u64) -> Result<Mapping, InvocationError> {
        let Some((root, asid)) =
            space.capability.mapped_table().filter(|&(root, asid)| self.root_of(asid) == Some(root))
        else {
            return Err(InvocationError::InvalidCapability(0));
        };
        if address >= USER_TOP {
            return Err(InvocationError::InvalidArgument(0));
        }
        if address & ((1 << PAGE_BITS) - 1) != 0 {
            return Err(InvocationError::AlignmentError);
        }
        let place = walk(root, address);
        if place.bits != PAGE_BITS {
            let failure = FailedLookup::MissingCapability { bits_left: place.bits.into() };
            return Err(InvocationError::FailedLookup { operand: Operand::Destination, failure });
        }
        if place.get() & entry::VALID != 0 {
            return Err(InvocationError::DeleteFirst);
        }
        Ok(Mapping { asid, address })
    }

    /// Returns whether a small page can be mapped at this place, and none is mapped.
    pub(crate) fn is_unmapped_page(&self, mapping: Mapping) -> bool {
        self.root_of(mapping.asid).is_some_and(|root| {
            let place = walk(root, mapping.address);
            place.bits == PAGE_BITS && place.get() & entry::VALID == 0
        })
    }

    /// Maps a device page for reading and writing, if the place is free and has a table; returns whether it is mapped.
    pub(crate) fn map_sender_page(&self, physical: u64, mapping: Mapping) -> bool {
        let is_free = self.is_unmapped_page(mapping);
        if let Some(root) = self.root_of(mapping.asid).filter(|_| is_free) {
            walk(root, mapping.address).set(page_entry(physical, PageRights::ReadWrite, Fetches::Forbidden));
            self.flush_page(mapping);
        }
        is_free
    }

    /// Marks the place of a sender page whose capability was deleted, unless another page is mapped there.
    pub(crate) fn note_revoked_sender(&self, mapping: Mapping) {
        if let Some(root) = self.root_of(mapping.asid).filter(|_| self.is_unmapped_page(mapping)) {
            walk(root, mapping.address).set(entry::REVOKED);
        }
    }

    /// Removes the mark of [`note_revoked_sender`](Self::note_revoked_sender).
    pub(crate) fn forget_revoked_sender(&self, mapping: Mapping) {
        if let Some(root) = self.root_of(mapping.asid).filter(|_| self.is_revoked_sender(mapping)) {
            walk(root, mapping.address).set(0);
        }
    }

    /// Returns whether the last page mapped at this place was a sender page whose capability was deleted.
    pub(crate) fn is_revoked_sender(&self, mapping: Mapping) -> bool {
        self.is_unmapped_page(mapping)
            && self.root_of(mapping.asid).is_some_and(|root| walk(root, mapping.address).get() == entry::REVOKED)
    }

    /// Flushes the translation of a page on every hart.
    #[inline]
    pub(crate) fn flush_page(&self, mapping: Mapping) {
        self.flush_everywhere(mapping.asid, Scope::Page { address: mapping.address as usize, asid: mapping.asid });
    }

    /// Decodes an invocation of the ASID control capability.
    pub(crate) fn decode_asid_control(
        &self,
        invocation: Option<Invocation>,
        arguments: &Arguments,
    ) -> Result<VSpaceCall, InvocationError> {
        if invocation != Some(Invocation::AsidControlMakePool) {
            return Err(InvocationError::IllegalOperation);
        }
        let [target, depth] = arguments.at_least::<2>()?;
        let (untyped, root) = (arguments.capability(0)?, arguments.capability(1)?);
        let Some(index) = self.asid_pools.iter().position(|pool| pool.get().is_none()) else {
            return Err(InvocationError::DeleteFirst);
        };
        let Capability::Untyped { base, bits: bits @ POOL_BITS, device: false, .. } = untyped.capability.get() else {
            return Err(InvocationError::InvalidCapability(1));
        };
        if derivation::has_children(untyped) {
            return Err(InvocationError::RevokeFirst);
        }
        let slot = cspace::empty_target(root.capability.get(), target, depth)?;
        Ok(VSpaceCall::MakePool { untyped, base, bits, slot, index })
    }

    /// Decodes an invocation of an ASID pool.
    pub(crate) fn decode_asid_pool(
        &self,
        invocation: Option<Invocation>,
        pool: Ref<AsidPool>,
        base: u16,
        arguments: &Arguments,
    ) -> Result<VSpaceCall, InvocationError> {
        if invocation != Some(Invocation::AsidPoolAssign) {
            return Err(InvocationError::IllegalOperation);
        }
        let slot = arguments.capability(0)?;
        let Capability::PageTable { table, mapping: None } = slot.capability.get() else {
            return Err(InvocationError::InvalidCapability(1));
        };
        match self.pool_of(base) {
            None => {
                return Err(InvocationError::FailedLookup {
                    operand: Operand::Destination,
                    failure: FailedLookup::InvalidRoot,
                });
            }
            Some(found) if found != pool => return Err(InvocationError::InvalidCapability(0)),
            Some(_) => {}
        }
        // ASID 0 is never assigned.
        let free = |&index: &usize| pool.roots[index].get().is_none() && (base != 0 || index != 0);
        let index = (0..IDENTIFIERS).find(free).ok_or(InvocationError::DeleteFirst)?;
        Ok(VSpaceCall::Assign { pool, index, asid: base + index as u16, slot, table })
    }

    /// Performs a decoded invocation.
    #[inline(always)]
    pub(crate) fn invoke_vspace(
        &self,
        slot: Ref<Slot>,
        call: VSpaceCall,
        arguments: &Arguments,
    ) -> Result<Done, Preempted> {
        match call {
            VSpaceCall::MapTable { capability, place, entry } => {
                slot.capability.set(capability);
                place.set(entry);
                if let Capability::PageTable { mapping: Some(mapping), .. } = capability {
                    self.flush_everywhere(mapping.asid, Scope::AddressSpace { asid: mapping.asid });
                }
            }
            VSpaceCall::UnmapTable { table, mapping } => {
                if let Some(mapping) = mapping {
                    self.unmap_table(table, mapping);
                    objects::clear(table.physical(), 1 << object::PAGE_TABLE_BITS);
                }
                slot.capability.set(Capability::PageTable { table, mapping: None });
            }
            VSpaceCall::MapPage { capability, mapping, place, entry } => {
                slot.capability.set(capability);
                place.set(entry);
                self.flush_everywhere(
                    mapping.asid,
                    Scope::Page { address: mapping.address as usize, asid: mapping.asid },
                );
            }
            VSpaceCall::UnmapPage { base, size, mapping } => {
                if let Some(mapping) = mapping {
                    self.unmap_frame(base, size, mapping);
                }
                if let Capability::Frame { base, size, rights, device, .. } = slot.capability.get_here() {
                    slot.capability.set(Capability::Frame { base, size, rights, device, mapping: None });
                }
            }
            VSpaceCall::GetAddress { base } => {
                if arguments.is_call() {
                    set_message_register(arguments.thread(), None, 0, base);
                    return Ok(Done::Answer { length: 1 });
                }
            }
            VSpaceCall::MakePool { untyped, base, bits, slot, index } => {
                untyped.capability.set(Capability::Untyped { base, bits, device: false, used: 1 << bits });
                objects::clear(base, 1 << bits);
                let pool = claim(base);
                let first = (index << ASID_POOL_INDEX_BITS) as u16;
                derivation::insert_new(untyped, slot, Capability::AsidPool { pool, base: first });
                self.asid_pools[index].set(Some(pool));
            }
            VSpaceCall::Assign { pool, index, asid, slot, table } => {
                slot.capability.set(Capability::PageTable { table, mapping: Some(Mapping { asid, address: 0 }) });
                copy_kernel_half(table);
                pool.roots[index].set(Some(table));
                self.begin_space_epoch();
            }
        }
        Ok(Done::Plain)
    }

    /// Flushes translations of an address space on every hart that may have cached them. A hart that does not run in
    /// the address space flushes before it runs a thread again.
    #[inline(always)]
    fn flush_everywhere(&self, asid: u16, scope: Scope) {
        // An ASID that is too large for the machine is not in its TLBs, so everything is flushed.
        let scope = if asid > Machine::maximum_asid() { Scope::All } else { scope };
        match self.deferred_flushes.is_deferring() {
            true => self.defer_flush(asid, scope),
            false if cfg!(feature = "smp") => self.flush_harts(asid, scope),
            false => Machine::flush_tlb(Flush::Local(scope)),
        }
    }

    #[inline(never)]
    fn flush_harts(&self, asid: u16, scope: Scope) {
        let mut harts = HartSet::EMPTY.with(self.here());
        if self.node_count.get() > 1 {
            for index in (0..self.node_count.get()).filter(|&index| index != self.here()) {
                let node = &self.nodes[index];
                if node.current.get().is_some() && node.asid.get() == asid {
                    if self.stop_virtualised(index) {
                        // The hart flushes the second stage when it enters a virtualised thread again. The flag is for
                        // ordinary threads of the space, which may have run there too.
                        node.is_stale.set(true);
                    } else {
                        harts = harts.with(index);
                    }
                } else {
                    node.is_stale.set(true);
                }
            }
            return Machine::flush_tlb(Flush::Remote(harts, scope));
        }
        Machine::flush_tlb(Flush::Local(scope));
    }

    /// Defers a flush, and performs a deferred flush of another address space.
    #[inline(always)]
    pub(crate) fn defer_flush(&self, asid: u16, scope: Scope) {
        if !self.deferred_flushes.note(asid, scope) {
            self.flush_deferred();
            self.deferred_flushes.note(asid, scope);
        }
    }

    /// Performs the deferred flush.
    #[inline]
    pub(crate) fn flush_deferred(&self) {
        if let Some((asid, scope)) = self.deferred_flushes.take() {
            let was_deferring = self.deferred_flushes.set_deferring(false);
            self.flush_everywhere(asid, scope);
            self.deferred_flushes.set_deferring(was_deferring);
        }
    }

    /// Returns the table of the last level for an address, if there is one.
    pub(crate) fn last_table(&self, mapping: Mapping) -> Option<Ref<PageTable>> {
        let place = walk(self.root_of(mapping.asid)?, mapping.address);
        (place.bits == PAGE_BITS).then_some(place.table)
    }

    /// Returns the place at which a page is mapped, if it still is.
    pub(crate) fn page_place(&self, base: u64, size: FrameSize, mapping: Mapping) -> Option<EntryPlace> {
        let place = walk(self.root_of(mapping.asid)?, mapping.address);
        let found = place.get();
        let is_page = found & entry::VALID != 0 && !entry::is_table(found);
        (place.bits == size.bits() && is_page && entry::address(found) == base).then_some(place)
    }

    /// Unmaps a page, if it is still mapped.
    pub(crate) fn unmap_frame(&self, base: u64, size: FrameSize, mapping: Mapping) {
        if let Some(place) = self.page_place(base, size, mapping) {
            place.set(0);
            self.flush_everywhere(mapping.asid, Scope::Page { address: mapping.address as usize, asid: mapping.asid });
        }
    }

    /// Returns the place at which a table is mapped, if it still is.
    pub(crate) fn table_place(&self, table: Ref<PageTable>, mapping: Mapping) -> Option<EntryPlace> {
        let mut bits = TOPMOST_BITS;
        let mut above = self.root_of(mapping.asid)?;
        while bits > PAGE_BITS {
            let place = EntryPlace { table: above, index: (mapping.address >> bits) as usize % ENTRIES, bits };
            let found = place.get();
            if !entry::is_table(found) {
                return None;
            }
            if entry::address(found) == table.physical() {
                return Some(place);
            }
            above = claim(entry::address(found));
            bits -= INDEX_BITS;
        }
        None
    }

    /// Unmaps a table, if it is still mapped.
    pub(crate) fn unmap_table(&self, table: Ref<PageTable>, mapping: Mapping) {
        if let Some(place) = self.table_place(table, mapping) {
            place.set(0);
            self.flush_everywhere(mapping.asid, Scope::AddressSpace { asid: mapping.asid });
        }
    }

    /// Unmaps a table whose last capability is deleted, and deletes the address space if the table is its root.
    pub(crate) fn forget_table(&self, table: Ref<PageTable>, mapping: Mapping) {
        if !self.delete_address_space(table, mapping.asid) {
            self.unmap_table(table, mapping);
        }
    }

    /// Deletes an address space if this table is its root; returns whether it is.
    fn delete_address_space(&self, table: Ref<PageTable>, asid: u16) -> bool {
        let Some(pool) = self.pool_of(asid) else { return false };
        let place = &pool.roots[usize::from(asid) % IDENTIFIERS];
        if place.get() != Some(table) {
            return false;
        }
        place.set(None);
        self.leave_address_space(asid);
        true
    }

    /// Deletes all address spaces of a pool at once: no ASID of the pool has a root any more.
    pub(crate) fn delete_asid_pool(&self, pool: Ref<AsidPool>, base: u16) {
        let place = &self.asid_pools[usize::from(base >> ASID_POOL_INDEX_BITS) % POOLS];
        if place.get() == Some(pool) {
            place.set(None);
            let is_in_pool = |asid: u16| asid != 0 && asid >> ASID_POOL_INDEX_BITS == base >> ASID_POOL_INDEX_BITS;
            self.forget_senders_in(is_in_pool);
            self.leave_space();
            self.begin_space_epoch();
            self.stop_address_spaces(is_in_pool);
            // Harts that do not run in any of them flush before they run a thread again; one flush covers all ASIDs.
            self.flush_everywhere(base, Scope::All);
        }
    }

    /// Makes every hart stop using the tables of an address space, so that they can be freed. Each hart activates the
    /// table of its next thread when it leaves the kernel.
    fn leave_address_space(&self, asid: u16) {
        self.forget_senders_in(|other| other == asid);
        self.leave_space();
        self.begin_space_epoch();
        self.stop_address_spaces(|other| other == asid);
        self.flush_everywhere(asid, Scope::AddressSpace { asid });
    }
}

/// Copies the kernel's entries to the upper half of a root. The lower half must be empty.
pub fn copy_kernel_half(table: Ref<PageTable>) {
    let kernel = claim::<PageTable>(Machine::kernel_root_ppn() << 12);
    debug_assert_ne!(physical_of(&*kernel), table.physical());
    for (own, kernels) in table.entries.iter().zip(&kernel.entries).skip(ENTRIES / 2) {
        own.store(kernels.load(Relaxed), Relaxed);
    }
}

/// For the consistency checker: marks an address space with a capability.
pub fn mark_root(root: Ref<PageTable>) {
    root_mark(root).mark();
}

/// Returns the place of an address space's mark: the last entry, which is the kernel's.
fn root_mark(root: Ref<PageTable>) -> EntryPlace {
    EntryPlace { table: root, index: ENTRIES - 1, bits: TOPMOST_BITS }
}

/// For the consistency checker, after all capabilities have marked their mappings: checks that every mapping in the
/// address spaces of a pool is marked, and removes the marks.
///
/// # Panics
/// If a mapping has no mark.
pub fn check_pool(pool: Ref<AsidPool>, index: usize) {
    for (low, root) in pool.roots.iter().enumerate() {
        if let Some(root) = root.get() {
            check_known(root_mark(root), "an address space", index << ASID_POOL_INDEX_BITS | low);
            check_table(root, 0, TOPMOST_BITS, 0..ENTRIES / 2);
        }
    }
}

fn check_known(place: EntryPlace, thing: &str, address: usize) {
    let found = place.get();
    assert!(found & entry::KNOWN != 0, "{thing} has no capability: {address:#x}");
    place.set(found & !entry::KNOWN);
}

fn check_table(table: Ref<PageTable>, start: u64, bits: u32, indexes: core::ops::Range<usize>) {
    for index in indexes {
        let place = EntryPlace { table, index, bits };
        let found = place.get();
        if found & entry::VALID != 0 {
            let address = start + ((index as u64) << bits);
            check_known(place, "a mapping", address as usize);
            if entry::is_table(found) {
                assert!(bits > PAGE_BITS, "there is a table below the last one, at {address:#x}");
                check_table(claim(entry::address(found)), address, bits - INDEX_BITS, 0..ENTRIES);
            }
        }
    }
}

/// For boot: maps a table that an address needs, below a root; returns the address at which it is mapped.
///
/// # Panics
/// If a table is mapped there already.
pub fn boot_map_table(root: Ref<PageTable>, address: u64, table: Ref<PageTable>) -> u64 {
    let place = walk(root, address);
    assert!(place.bits > PAGE_BITS && place.get() == 0, "a table is mapped twice at boot");
    place.set(entry::table(table.physical()));
    address & !((1 << place.bits) - 1)
}

/// For boot: whether an address needs another table before a small page can be mapped there.
pub fn boot_needs_table(root: Ref<PageTable>, address: u64) -> bool {
    walk(root, address).bits != PAGE_BITS
}

/// For boot: maps a small page with all rights.
pub fn boot_map_page(root: Ref<PageTable>, address: u64, physical: u64) {
    walk(root, address).set(page_entry(physical, PageRights::ReadWrite, Fetches::Allowed));
}
