//! Mapping pages where page tables may be missing.

use abi_sel4::object::PAGE_BITS;
use abi_sel4::{Error, ObjectType, Rights};

use crate::allocator::Allocator;
use crate::capability::{Page, PageTable, initial};
use crate::raw::Result;

/// Maps a page, and makes and maps the page tables that are missing on the way.
///
/// # Errors
///
/// Slots or memory are too few for a page table, or what the kernel says about the page.
pub fn map(
    allocator: &mut Allocator,
    space: PageTable,
    page: Page,
    address: u64,
    rights: Rights,
    attributes: u64,
) -> Result<()> {
    // At most two tables can be missing below the topmost one; each attempt that fails maps one.
    loop {
        match page.map(space, address, rights, attributes) {
            Err(failure) if failure.error == Error::FailedLookup => {
                let table = PageTable::from_pointer(allocator.object(ObjectType::PageTable)?);
                table.map(space, address, 0)?;
            }
            result => return result,
        }
    }
}

/// A range of the own address space in which pages are mapped one after the other.
///
/// Between two calls one page stays unmapped: what runs over the end of the pages of one call faults.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    next: u64,
    end: u64,
}

impl Window {
    /// These addresses, where nothing must be mapped; both are multiples of the page size.
    pub const fn new(start: u64, end: u64) -> Window {
        Window { next: start, end }
    }

    /// Maps `count` new pages, readable and writable, and gives the address of the first and its capability; those of the others follow.
    ///
    /// # Errors
    ///
    /// Slots, memory or addresses ([`Error::RangeError`]) are too few.
    pub fn pages(&mut self, allocator: &mut Allocator, count: u64) -> Result<(u64, Page)> {
        let address = self.next;
        let after = count.checked_add(1).and_then(|pages| address.checked_add(pages.checked_mul(1 << PAGE_BITS)?));
        let Some(after) = after.filter(|after| *after <= self.end) else {
            return Err(crate::Failure { error: Error::RangeError, details: [0, self.end - self.next, 0, 0, 0, 0] });
        };
        let first = allocator.make(ObjectType::Page, 0, count)?;
        for index in 0..count {
            let page = Page::from_pointer(first + index);
            map(allocator, initial::ADDRESS_SPACE, page, address + (index << PAGE_BITS), Rights::READ_WRITE, 0)?;
        }
        self.next = after;
        Ok((address, Page::from_pointer(first)))
    }
}
