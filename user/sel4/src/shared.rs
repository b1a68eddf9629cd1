//! Memory that can change from outside: by another program, or by a device.
//!
//! Rust assumes that memory behind a reference changes only through the program itself. So there are no references to
//! shared memory here, but copies, which read or write each byte once, and atomic words. Data is checked in the copy.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use abi_sel4::object::PAGE_BITS;

use crate::allocator::Allocator;
use crate::capability::Page;
use crate::mapping::Window;
use crate::raw::Result;

/// A range of mapped memory, aligned to words, that stays mapped for the rest of the program.
#[derive(Clone, Copy, Debug)]
pub struct SharedMemory {
    start: *mut u8,
    length: usize,
}

// SAFETY: it permits volatile copies and atomics, which are sound for memory that changes at the same time.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Describes the memory at `address`.
    ///
    /// # Safety
    ///
    /// The memory is mapped, readable and writable, for the rest of the program, and contains no Rust object.
    ///
    /// # Panics
    ///
    /// If it is not aligned to words of 8 bytes.
    pub unsafe fn new(address: u64, length: usize) -> SharedMemory {
        assert!(address.is_multiple_of(8) && length.is_multiple_of(8), "shared memory consists of words");
        SharedMemory { start: core::ptr::with_exposed_provenance_mut(address as usize), length }
    }

    /// Allocates memory of this program alone that is used like shared memory: for tests, and for both ends of rings
    /// within a program. It is never freed.
    pub fn private(words: usize) -> SharedMemory {
        let words: &'static mut [u64] = alloc::vec![0; words].leak();
        SharedMemory { start: words.as_mut_ptr().cast(), length: size_of_val(words) }
    }

    /// Returns the address.
    pub fn address(&self) -> u64 {
        self.start.expose_provenance() as u64
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns a part of the memory; `None` if it does not lie inside, or is not aligned to words.
    pub fn part(&self, offset: usize, length: usize) -> Option<SharedMemory> {
        let end = offset.checked_add(length)?;
        let fits = end <= self.length && offset.is_multiple_of(8) && length.is_multiple_of(8);
        fits.then(|| SharedMemory { start: self.start.wrapping_add(offset), length })
    }

    /// Returns the memory as words.
    pub fn words(&self) -> &'static [AtomicU64] {
        // SAFETY: mapped for ever and aligned (contract of `new`); atomics may change from outside.
        unsafe { core::slice::from_raw_parts(self.start.cast(), self.length / 8) }
    }

    /// Returns the memory as halves of words.
    pub fn half_words(&self) -> &'static [AtomicU32] {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts(self.start.cast(), self.length / 4) }
    }

    /// Copies bytes from `offset` on into a slice; `false`, and no copy, if they do not all lie inside.
    #[must_use]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> bool {
        let inside = self.contains(offset, into.len());
        if inside {
            // SAFETY: both are as long as that, and private memory is not shared memory.
            unsafe { copy(self.start.wrapping_add(offset), into.as_mut_ptr(), into.len()) };
        }
        inside
    }

    /// Copies a slice to `offset`; `false`, and no copy, if it does not fit inside.
    #[must_use]
    pub fn write(&self, offset: usize, from: &[u8]) -> bool {
        let inside = self.contains(offset, from.len());
        if inside {
            // SAFETY: both are as long as that, and private memory is not shared memory.
            unsafe { copy(from.as_ptr(), self.start.wrapping_add(offset), from.len()) };
        }
        inside
    }

    /// Returns whether these bytes lie inside.
    pub fn contains(&self, offset: usize, length: usize) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.length)
    }
}

/// Copies, each byte once, in the largest units for which both sides are aligned alike.
///
/// # Safety
///
/// `from` is readable and `to` writable for `length` bytes, and they do not overlap.
unsafe fn copy(mut from: *const u8, mut to: *mut u8, mut length: usize) {
    macro_rules! units {
        ($unit:ty, $while:expr) => {
            while length >= size_of::<$unit>() && $while {
                // SAFETY: so much is left on both sides, and both are aligned.
                unsafe { to.cast::<$unit>().write_volatile(from.cast::<$unit>().read_volatile()) };
                from = from.wrapping_add(size_of::<$unit>());
                to = to.wrapping_add(size_of::<$unit>());
                length -= size_of::<$unit>();
            }
        };
    }
    let difference = from.addr() ^ to.addr();
    if difference.is_multiple_of(8) {
        units!(u8, !from.addr().is_multiple_of(8));
        units!(u64, true);
    } else if difference.is_multiple_of(4) {
        units!(u8, !from.addr().is_multiple_of(4));
        units!(u32, true);
    }
    units!(u8, true);
}

impl Window {
    /// Maps new pages as shared memory, and returns it with the first capability; the other capabilities follow.
    ///
    /// # Errors
    ///
    /// As [`pages`](Window::pages).
    pub fn shared(&mut self, allocator: &mut Allocator, pages: u64) -> Result<(SharedMemory, Page)> {
        let (address, page) = self.pages(allocator, pages)?;
        // SAFETY: new pages that no other code has, and that this library never unmaps.
        Ok((unsafe { SharedMemory::new(address, (pages << PAGE_BITS) as usize) }, page))
    }

    /// Maps memory for a device: physically contiguous pages. Returns it with the physical address of the first.
    ///
    /// # Errors
    ///
    /// As [`pages`](Window::pages); in particular, no more than
    /// [`RETYPE_LIMIT`](abi_sel4::configuration::RETYPE_LIMIT) pages.
    pub fn device_reachable(&mut self, allocator: &mut Allocator, pages: u64) -> Result<(SharedMemory, u64)> {
        // One invocation cuts consecutive objects off one memory.
        let (memory, page) = self.shared(allocator, pages)?;
        let physical = page.physical_address()?;
        Ok((memory, physical))
    }
}

/// A device's registers in mapped pages.
#[derive(Clone, Copy, Debug)]
pub struct Registers(SharedMemory);

impl Registers {
    /// Describes the registers in this memory.
    pub const fn new(memory: SharedMemory) -> Registers {
        Registers(memory)
    }

    fn at<T>(&self, offset: usize) -> *mut T {
        assert!(
            self.0.contains(offset, size_of::<T>()) && offset.is_multiple_of(size_of::<T>()),
            "the device has no register {offset:#x}"
        );
        self.0.start.wrapping_add(offset).cast()
    }
}

/// Orders memory and device registers: data for the device is written before it is told, and data reported by the
/// device can be read.
fn order() {
    #[cfg(all(target_arch = "riscv64", target_os = "none"))]
    // SAFETY: an instruction that only orders.
    unsafe {
        core::arch::asm!("fence iorw, iorw", options(nostack, preserves_flags));
    }
    fence(Ordering::SeqCst);
}

impl drivers::Registers for Registers {
    fn read8(&self, offset: usize) -> u8 {
        // SAFETY: inside, aligned, and mapped for ever.
        let value = unsafe { self.at::<u8>(offset).read_volatile() };
        order();
        value
    }

    fn write8(&self, offset: usize, value: u8) {
        order();
        // SAFETY: as above.
        unsafe { self.at::<u8>(offset).write_volatile(value) };
    }

    fn read16(&self, offset: usize) -> u16 {
        // SAFETY: as above.
        let value = unsafe { self.at::<u16>(offset).read_volatile() };
        order();
        value
    }

    fn write16(&self, offset: usize, value: u16) {
        order();
        // SAFETY: as above.
        unsafe { self.at::<u16>(offset).write_volatile(value) };
    }

    fn read32(&self, offset: usize) -> u32 {
        // SAFETY: as above.
        let value = unsafe { self.at::<u32>(offset).read_volatile() };
        order();
        value
    }

    fn write32(&self, offset: usize, value: u32) {
        order();
        // SAFETY: as above.
        unsafe { self.at::<u32>(offset).write_volatile(value) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Against an ordinary array, at all alignments.
        #[test]
        fn copies_are_exact(offset in 0_usize..80, shift in 0_usize..8, bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let memory = SharedMemory::private(16);
            let fits = offset + bytes.len() <= 128;
            // At every alignment of the private side too.
            let mut private = vec![0_u64; 12];
            // SAFETY: bytes of a vector of words.
            let private = unsafe { core::slice::from_raw_parts_mut(private.as_mut_ptr().cast::<u8>(), 96) };
            private[shift..shift + bytes.len()].copy_from_slice(&bytes);
            prop_assert_eq!(memory.write(offset, &private[shift..shift + bytes.len()]), fits);
            let mut all = [0; 128];
            prop_assert!(memory.read(0, &mut all));
            let mut expected = [0; 128];
            if fits {
                expected[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
            prop_assert_eq!(all, expected);
            private.fill(0);
            prop_assert_eq!(memory.read(offset, &mut private[shift..shift + bytes.len()]), fits);
            if fits {
                prop_assert_eq!(&private[shift..shift + bytes.len()], &bytes[..]);
            }
        }
    }

    #[test]
    fn ranges_outside_of_the_memory_are_refused() {
        let memory = SharedMemory::private(2);
        assert!(!memory.read(9, &mut [0; 8]) && !memory.write(usize::MAX, &[0; 2]) && memory.read(16, &mut []));
        assert!(memory.part(8, 8).is_some() && memory.part(8, 16).is_none() && memory.part(4, 8).is_none());
        assert!(memory.part(usize::MAX & !7, 16).is_none());
        assert_eq!((memory.words().len(), memory.half_words().len(), memory.is_empty()), (2, 4, false));
    }
}
