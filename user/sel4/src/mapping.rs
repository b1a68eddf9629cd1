//! Mapping pages where page tables may be missing.

use abi_sel4::object::{MEGA_PAGE_BITS, PAGE_BITS};
use abi_sel4::{Error, ObjectType, Rights};

use crate::allocator::Allocator;
use crate::capability::{Page, PageTable, initial};
use crate::raw::Result;

/// Maps a page, and makes and maps the missing page tables.
///
/// # Errors
///
/// Slots or memory are too few for a page table, or the kernel's error about the page.
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

/// A range of this program's address space in which pages are mapped one after the other.
///
/// Between two calls one page stays unmapped: an overrun of the pages of one call faults.
#[derive(Clone, Copy, Debug)]
#[doc(alias("vspace", "VSpace"))]
pub struct Window {
    next: u64,
    end: u64,
}

impl Window {
    /// Creates a window of these addresses, which must be unmapped; both are multiples of the page size.
    pub const fn new(start: u64, end: u64) -> Window {
        Window { next: start, end }
    }

    /// Maps `count` new pages, readable and writable, and returns the address of the first and its capability; the
    /// other capabilities follow.
    ///
    /// # Errors
    ///
    /// Slots, memory or addresses ([`Error::RangeError`]) are too few.
    pub fn pages(&mut self, allocator: &mut Allocator, count: u64) -> Result<(u64, Page)> {
        self.map_new(allocator, ObjectType::Page, PAGE_BITS, count)
    }

    /// Maps pages of 2 MiB, which take fewer slots, page tables and TLB entries.
    ///
    /// # Errors
    ///
    /// As [`pages`](Window::pages).
    pub fn mega_pages(&mut self, allocator: &mut Allocator, count: u64) -> Result<(u64, Page)> {
        self.map_new(allocator, ObjectType::MegaPage, MEGA_PAGE_BITS, count)
    }

    /// Takes addresses for `count` pages of 2^`bits` bytes, aligned to one such page, for the caller to map.
    ///
    /// # Errors
    ///
    /// Too few addresses are left ([`Error::RangeError`]).
    pub fn addresses(&mut self, bits: usize, count: u64) -> Result<u64> {
        let address = self.next.next_multiple_of(1 << bits);
        let pages = count.checked_mul(1 << bits).and_then(|bytes| address.checked_add(bytes));
        let after = pages.and_then(|end| end.checked_add(1 << PAGE_BITS)).filter(|after| *after <= self.end);
        let Some(after) = after else {
            return Err(crate::Failure::new(Error::RangeError, [0, self.end - self.next]));
        };
        self.next = after;
        Ok(address)
    }

    fn map_new(&mut self, allocator: &mut Allocator, kind: ObjectType, bits: usize, count: u64) -> Result<(u64, Page)> {
        let before = *self;
        let address = self.addresses(bits, count)?;
        let map_all = |allocator: &mut Allocator| {
            let first = allocator.make(kind, 0, count)?;
            for index in 0..count {
                let page = Page::from_pointer(first + index);
                map(allocator, initial::ADDRESS_SPACE, page, address + (index << bits), Rights::READ_WRITE, 0)?;
            }
            Ok((address, Page::from_pointer(first)))
        };
        let result = map_all(allocator);
        if result.is_err() {
            *self = before;
        }
        result
    }
}
