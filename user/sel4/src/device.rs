//! Device memory: the page of a physical address.
//!
//! The boot information lists device memory as untyped memories of all sizes, and objects are cut off from the start of
//! each. [`DeviceMemory`] halves such a memory until the requested page is alone, and keeps the other halves for later
//! requests.

use abi_sel4::object::PAGE_BITS;
use abi_sel4::{Error, ObjectType, Rights};

use crate::allocator::Allocator;
use crate::boot::BootInformation;
use crate::capability::{Page, Slot, Untyped, initial};
use crate::mapping::{self, Window};
use crate::raw::{Failure, Result};
use crate::shared::{Registers, SharedMemory};

/// Largest number of pieces of device memory.
const PIECES: usize = 256;

/// A piece of which no part was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    untyped: Untyped,
    address: u64,
    bits: usize,
}

impl Piece {
    fn contains(&self, address: u64) -> bool {
        address >= self.address && (address - self.address) >> self.bits == 0
    }
}

/// The unused device memory.
#[derive(Debug)]
pub struct DeviceMemory {
    pieces: heapless::Vec<Piece, PIECES>,
}

impl DeviceMemory {
    /// Creates the list of all device memory of the boot information, all of it unused.
    pub fn new(boot: &BootInformation) -> DeviceMemory {
        let devices = boot.untypeds().filter(|(_, description)| description.is_device == 1);
        let pieces = devices.map(|(untyped, description)| Piece {
            untyped,
            address: description.physical_address,
            bits: description.size_bits.into(),
        });
        DeviceMemory { pieces: pieces.collect() }
    }

    /// Returns the page at a physical address. Each page is given out once.
    ///
    /// # Errors
    ///
    /// The address is not of device memory, or was given out ([`Error::FailedLookup`]); slots are too few, or there are
    /// too many pieces ([`Error::NotEnoughMemory`]).
    pub fn page(&mut self, allocator: &mut Allocator, address: u64) -> Result<Page> {
        let failed = |error| Failure::new(error, [0; 2]);
        let found = self.pieces.iter().position(|piece| piece.bits >= PAGE_BITS && piece.contains(address));
        let mut piece = self.pieces[found.ok_or(failed(Error::FailedLookup))?];
        while piece.bits > PAGE_BITS {
            if self.pieces.is_full() {
                return Err(failed(Error::NotEnoughMemory));
            }
            let bits = piece.bits - 1;
            let first = allocator.slots(2)?;
            retype(piece.untyped, ObjectType::Untyped, bits, first, 2)?;
            let half = |number: u64| Piece {
                untyped: Untyped::from_pointer(first + number),
                address: piece.address + (number << bits),
                bits,
            };
            let (with, without) = if half(0).contains(address) { (half(0), half(1)) } else { (half(1), half(0)) };
            let place = self.pieces.iter_mut().find(|other| **other == piece);
            *place.expect("the piece is still listed") = with;
            self.pieces.push(without).expect("there is room, as looked for above");
            piece = with;
        }
        let slot = allocator.slot()?;
        retype(piece.untyped, ObjectType::Page, 0, slot, 1)?;
        self.pieces.retain(|other| *other != piece);
        Ok(Page::from_pointer(slot))
    }

    /// Maps the page at a physical address into this program and returns its registers, and the page.
    ///
    /// # Errors
    ///
    /// As [`page`](DeviceMemory::page), and addresses or page tables are too few.
    pub fn registers(
        &mut self,
        allocator: &mut Allocator,
        window: &mut Window,
        address: u64,
    ) -> Result<(Registers, Page)> {
        let page = self.page(allocator, address)?;
        let mapped = window.addresses(PAGE_BITS, 1)?;
        mapping::map(allocator, initial::ADDRESS_SPACE, page, mapped, Rights::READ_WRITE, 0)?;
        // SAFETY: device memory that was mapped just now, to stay.
        Ok((Registers::new(unsafe { SharedMemory::new(mapped, 1 << PAGE_BITS) }), page))
    }
}

fn retype(untyped: Untyped, object: ObjectType, bits: usize, first: u64, count: u64) -> Result<()> {
    untyped.retype(object, bits, Slot { root: initial::CNODE, index: 0, depth: 0 }, first, count)
}
