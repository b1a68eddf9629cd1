//! Rows of requests that map and unmap small pages.
//!
//! Requests for pages follow each other in long rows, and all requests of a row name the same address space, tables and
//! CNode. A [`PagingRow`] keeps these from one request to the next, so that such a request costs a few loads and one
//! store instead of two resolutions, a check of the address space and a walk through its tables.
//!
//! **Only successes.** A request that would fail, or is in any way unusual, is left to the decoders of all other
//! requests, which find it as it was: nothing is changed before all is checked. So there is one place for errors.
//!
//! **ROW: the validity of what is kept.** The kernel's lock is held from the first request of a row to its last, and a
//! row ends with the first request that is not for a page ([`PagingRow::end`]). Mapping and unmapping pages changes no
//! capability to a CNode, an address space or a table, and no entry that points to a table. The tempting wrong way is
//! to keep the capability of the page as well: it changes with each of its requests.

use abi_sel4::Rights;
use abi_sel4::configuration::USER_TOP;
use abi_sel4::message::EXECUTE_NEVER;
use hal_api::Scope;
use objects::{CNode, Mapping, PageTable, Ref, Slot, Tcb, own};

use crate::capability;
use crate::kernel::Kernel;
use crate::vspace::{self, EntryPlace, Fetches};

/// Number of bits of an address that a table of the last level and its pages translate.
const REGION_BITS: u32 = vspace::PAGE_BITS + vspace::INDEX_BITS;

/// The parts of one request to map a page.
pub(crate) struct PageRequest {
    /// The pointer of the page's capability.
    pub(crate) page: u64,
    /// The pointer of the address space's capability.
    pub(crate) space: u64,
    pub(crate) address: u64,
    pub(crate) rights: u64,
    pub(crate) attributes: u64,
}

/// The facts that the requests of a row have in common.
pub(crate) struct PagingRow {
    thread: Ref<Tcb>,
    /// The root of the thread's capability space, if each of its slots has an address of all bits.
    node: Option<CNode>,
    /// An address space: the pointer that named it, its ASID and its root.
    space: Option<(u64, u16, Ref<PageTable>)>,
    /// A table of the last level: its ASID and the region that it translates.
    table: Option<(u16, u64, Ref<PageTable>)>,
}

impl PagingRow {
    /// Makes the row of a thread's requests.
    #[inline(always)]
    pub(crate) fn of(thread: Ref<Tcb>) -> PagingRow {
        let mut row = PagingRow { thread, node: None, space: None, table: None };
        row.end();
        row
    }

    /// Ends the row, and begins another.
    #[inline]
    pub(crate) fn end(&mut self) {
        let node = self.thread.slots[own::CSPACE].capability.cnode();
        self.node = node.filter(|node| node.guard_bits + node.radix == u64::from(u64::BITS));
        self.space = None;
        self.table = None;
    }

    /// Returns the slot at an address, if that is in the root CNode.
    #[inline(always)]
    fn slot(&self, pointer: u64) -> Option<Ref<Slot>> {
        let node = self.node?;
        // The guard's bits become 0 if they are right, and the others are the index.
        let index = pointer ^ node.high_guard;
        (index >> 1 >> (node.radix.wrapping_sub(1) & 63) == 0).then(|| node.slots.in_node(index))
    }

    /// Returns the ASID of the address space that a capability names.
    #[inline(always)]
    fn asid(&mut self, kernel: &Kernel, pointer: u64) -> Option<u16> {
        match self.space {
            Some((known, asid, _)) if known == pointer => Some(asid),
            _ => self.find_space(kernel, pointer),
        }
    }

    #[inline(never)]
    fn find_space(&mut self, kernel: &Kernel, pointer: u64) -> Option<u16> {
        let (table, asid) = self.slot(pointer)?.capability.mapped_table()?;
        if kernel.root_of(asid) != Some(table) {
            return None;
        }
        self.space = Some((pointer, asid, table));
        Some(asid)
    }

    /// Returns the place of a small page, if there is a table for it.
    #[inline(always)]
    fn place(&mut self, kernel: &Kernel, mapping: Mapping) -> Option<EntryPlace> {
        let region = mapping.address >> REGION_BITS;
        let table = match self.table {
            Some((asid, known, table)) if known == region && asid == mapping.asid => table,
            _ => self.find_table(kernel, mapping)?,
        };
        Some(EntryPlace::of_page(table, mapping.address))
    }

    #[inline(never)]
    fn find_table(&mut self, kernel: &Kernel, mapping: Mapping) -> Option<Ref<PageTable>> {
        let table = kernel.last_table(mapping)?;
        self.table = Some((mapping.asid, mapping.address >> REGION_BITS, table));
        Some(table)
    }
}

impl Kernel {
    /// Maps a small page as a request of a row asks; returns whether that is done. If not, nothing has changed.
    #[inline(always)]
    pub(crate) fn map_in_row(&self, row: &mut PagingRow, request: PageRequest) -> bool {
        self.try_map_in_row(row, request).is_some()
    }

    #[inline(always)]
    fn try_map_in_row(&self, row: &mut PagingRow, request: PageRequest) -> Option<()> {
        let PageRequest { page, space, address, rights, attributes } = request;
        let slot = row.slot(page)?;
        let page = slot.capability.small_page()?;
        let asid = row.asid(self, space)?;
        if address >= USER_TOP || address & ((1 << vspace::PAGE_BITS) - 1) != 0 {
            return None;
        }
        let mapping = Mapping { asid, address };
        let place = row.place(self, mapping)?;
        match page.mapping {
            Some(other) if other != mapping => return None,
            None if place.is_valid() => return None,
            _ => {}
        }
        let allowed = capability::restrict_page(page.rights, Rights::from_word(rights));
        let fetches = if attributes & EXECUTE_NEVER == 0 { Fetches::Allowed } else { Fetches::Forbidden };
        slot.capability.set_page_mapping(Some(mapping));
        place.set(vspace::page_entry(page.base, allowed, fetches));
        self.defer_flush(asid, Scope::Page { address: address as usize, asid });
        Some(())
    }

    /// Unmaps a small page as a request of a row asks; returns whether that is done. If not, nothing has changed.
    #[inline(always)]
    pub(crate) fn unmap_in_row(&self, row: &mut PagingRow, page: u64) -> bool {
        self.try_unmap_in_row(row, page).is_some()
    }

    #[inline(always)]
    fn try_unmap_in_row(&self, row: &mut PagingRow, page: u64) -> Option<()> {
        let slot = row.slot(page)?;
        let page = slot.capability.small_page()?;
        let mapping = page.mapping?;
        let place = row.place(self, mapping)?;
        if !place.is_page_at(page.base) {
            return None;
        }
        place.set(0);
        slot.capability.set_page_mapping(None);
        self.defer_flush(mapping.asid, Scope::Page { address: mapping.address as usize, asid: mapping.asid });
        Some(())
    }
}
