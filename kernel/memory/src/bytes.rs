//! The direct map: the kernel's access to the bytes of physical memory.
//!
//! A frame may be mapped into a program, and the program may write to it on another hart while the kernel reads. For
//! Rust that rules out references: behind a `&[u8]` the compiler may load twice and assume the same value, and behind a
//! `&mut [u8]` it may keep values in registers. So the kernel sees frames as memory outside of every Rust allocation,
//! shared with a foreign agent, and uses only
//!
//! * **volatile copies** between a frame and a private buffer: each byte is read or written exactly once, in any order,
//!   and the copy is checked afterwards in the private buffer, never in place;
//! * **atomics** on aligned words, for everything that both sides change by agreement: rings, bitmaps, futex words.
//!
//! Byte copies of words of different size that race would be a problem for atomics (Rust has no mixed-size races),
//! which is why copies are volatile; and volatile would be no synchronisation, which is why agreed words are atomic.
//!
//! This module is the only one that turns a physical address into a pointer.

use core::marker::PhantomData;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// `virtual address - physical address`, set once by [`crate::frames::init`].
// A hart that uses memory has been started after this was set, which orders the two; so loads are relaxed.
static OFFSET: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn set_offset(offset: usize) {
    OFFSET.store(offset, Ordering::Release);
}

/// Returns the pointer to `address` in the direct map. Making it is harmless; using it needs BOOT-MEMORY and ONE-OWNER.
#[inline(always)]
pub(crate) fn pointer(address: u64) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut((address as usize).wrapping_add(OFFSET.load(Ordering::Relaxed)))
}

/// Returns the physical address behind a pointer into the direct map.
#[inline(always)]
pub(crate) fn address(pointer: *const u8) -> u64 {
    (pointer.addr().wrapping_sub(OFFSET.load(Ordering::Relaxed))) as u64
}

/// A run of bytes that others, programs included, may change at any time.
///
/// It is the size of a slice reference and is copied as freely, and gives no reference to the bytes: only copies in and
/// out, and atomics. The lifetime is that of the handle that owns the memory, or of the borrow of the address space.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "volatile")]
#[doc(alias = "UserPtr")]
pub struct SharedBytes<'a> {
    start: *mut u8,
    length: usize,
    owner: PhantomData<&'a ()>,
}

// SAFETY: a `SharedBytes` permits only volatile copies and atomics on memory that is shared with other harts anyway
// (NO-REFERENCES), so it may be used from any hart.
unsafe impl Send for SharedBytes<'_> {}
// SAFETY: as above; all methods take the value by shared reference or copy.
unsafe impl Sync for SharedBytes<'_> {}

impl<'a> SharedBytes<'a> {
    /// Makes a run of the `length` bytes at the physical address.
    ///
    /// # Safety
    /// The bytes must lie in frames of one owner (or of a chain of owners) that keeps them for `'a`, and no Rust
    /// reference to them may exist during `'a` (NO-REFERENCES).
    #[inline(always)]
    pub(crate) unsafe fn new(address: u64, length: usize) -> Self {
        Self { start: pointer(address), length, owner: PhantomData }
    }

    /// Makes a run as [`Self::new`] does, from a pointer into the direct map.
    ///
    /// # Safety
    /// As for [`Self::new`].
    #[inline(always)]
    pub(crate) unsafe fn from_pointer(start: *mut u8, length: usize) -> Self {
        Self { start, length, owner: PhantomData }
    }

    /// Returns the length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the run is empty.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns a part of the run; `None` if it is not inside.
    #[must_use]
    #[inline]
    pub fn slice(&self, part: Range<usize>) -> Option<SharedBytes<'a>> {
        if part.start > part.end || part.end > self.length {
            return None;
        }
        Some(SharedBytes {
            start: self.start.wrapping_add(part.start),
            length: part.end - part.start,
            owner: PhantomData,
        })
    }

    /// Copies to a private buffer, as much as both hold, and returns the number of bytes.
    #[inline]
    pub fn copy_to(&self, destination: &mut [u8]) -> usize {
        let length = self.length.min(destination.len());
        // SAFETY: `start..start + length` is valid for volatile access (contract of `new`), `destination` is a live
        // exclusive slice of at least `length` bytes, and by NO-REFERENCES the two cannot overlap.
        unsafe { copy_volatile(self.start, destination.as_mut_ptr(), length) };
        length
    }

    /// Copies from a private buffer, as much as both hold, and returns the number of bytes.
    #[inline]
    pub fn copy_from(&self, source: &[u8]) -> usize {
        let length = self.length.min(source.len());
        // SAFETY: as in `copy_to`, with the directions exchanged.
        unsafe { copy_volatile(source.as_ptr(), self.start, length) };
        length
    }

    /// Copies from another run, as much as both hold, and returns the number of bytes. The two may be the same memory.
    #[inline]
    pub fn copy_from_shared(&self, source: &SharedBytes<'_>) -> usize {
        let length = self.length.min(source.length);
        // SAFETY: `length` bytes of both are valid for volatile access (contract of `new`); where they overlap, each
        // byte is one of those that were there.
        unsafe { copy_volatile(source.start, self.start, length) };
        length
    }

    /// Fills all bytes with zero.
    pub fn zero(&self) {
        // SAFETY: `start..start + length` is valid for volatile access (contract of `new`).
        unsafe { zero_volatile(self.start, self.length) };
    }

    /// Returns the byte at `offset`; `None` if it is outside.
    #[must_use]
    #[inline]
    pub fn byte(&self, offset: usize) -> Option<u8> {
        if offset >= self.length {
            return None;
        }
        // SAFETY: inside the run, which is valid for volatile access (contract of `new`).
        Some(unsafe { self.start.wrapping_add(offset).read_volatile() })
    }

    /// Returns the 64-bit word at `offset`, to be shared with all other users of the memory; `None` if it is outside or
    /// not aligned to 8 bytes.
    #[must_use]
    #[inline]
    pub fn atomic_u64(&self, offset: usize) -> Option<&'a AtomicU64> {
        let start = self.start.wrapping_add(offset);
        if self.length < 8 || offset > self.length - 8 || !start.addr().is_multiple_of(8) {
            return None;
        }
        // SAFETY: inside the run, aligned, and kept by its owner for `'a`; all others use atomics or volatile copies
        // (NO-REFERENCES), or are programs, whose accesses are made by the hardware.
        Some(unsafe { AtomicU64::from_ptr(start.cast()) })
    }

    /// Returns the `N` 64-bit words at `offset`, to be shared with all other users of the memory; `None` if they are
    /// not all inside or not aligned to 8 bytes.
    #[must_use]
    #[inline]
    pub fn atomic_words<const N: usize>(&self, offset: usize) -> Option<&'a [AtomicU64; N]> {
        let start = self.start.wrapping_add(offset);
        if self.length < 8 * N || offset > self.length - 8 * N || !start.addr().is_multiple_of(8) {
            return None;
        }
        // SAFETY: as in `atomic_u64`; a reference to atomics promises nothing about their values (NO-REFERENCES).
        Some(unsafe { &*start.cast::<[AtomicU64; N]>() })
    }

    /// Returns the 32-bit word at `offset`; `None` if it is outside or not aligned to 4 bytes.
    #[must_use]
    #[inline]
    pub fn atomic_u32(&self, offset: usize) -> Option<&'a AtomicU32> {
        let start = self.start.wrapping_add(offset);
        if self.length < 4 || offset > self.length - 4 || !start.addr().is_multiple_of(4) {
            return None;
        }
        // SAFETY: as in `atomic_u64`.
        Some(unsafe { AtomicU32::from_ptr(start.cast()) })
    }
}

/// Returns the 512 entries of the page table in the frame at `address`.
///
/// # Safety
/// The frame must be kept as a page table for `'a` (ONE-OWNER).
#[inline(always)]
pub(crate) unsafe fn table<'a>(address: u64) -> &'a [AtomicU64; 512] {
    // SAFETY: the frame is 4096 aligned bytes of memory (BOOT-MEMORY) that the caller keeps for `'a`; the hardware
    // reads it as single words, as atomics do.
    unsafe { &*pointer(address).cast() }
}

const WORD: usize = size_of::<u64>();
/// Length below which a loop over bytes is faster than choosing another way.
const SHORT: usize = 2 * WORD;

/// Copies `length` bytes; each is read once and written once.
///
/// # Safety
/// Both sides must be valid for volatile access.
#[inline]
unsafe fn copy_volatile(source: *const u8, destination: *mut u8, length: usize) {
    if (source.addr() | destination.addr() | length).is_multiple_of(WORD) {
        // SAFETY: as promised by the caller; both are aligned, and the length is of whole words.
        unsafe { copy_aligned(source.cast(), destination.cast(), length / WORD) };
    } else if length >= WORD && (source.addr() ^ destination.addr()).is_multiple_of(WORD) {
        // SAFETY: as promised by the caller; both are aligned alike.
        unsafe { copy_alike(source, destination, length) };
    } else if length < SHORT {
        // SAFETY: as promised by the caller.
        unsafe { copy_bytes(source, destination, length) };
    } else {
        // SAFETY: as promised by the caller.
        unsafe { copy_words(source, destination, length) };
    }
}

/// Copies between places that are aligned alike: a frame and its copy, a few fields of a structure.
///
/// # Safety
/// As for [`copy_volatile`], both sides must have the same remainder of [`WORD`], and `length` be at least that.
#[inline(never)]
unsafe fn copy_alike(mut source: *const u8, mut destination: *mut u8, mut length: usize) {
    /// Copies one value, and goes on behind it.
    macro_rules! step {
        ($value:ty) => {
            // SAFETY: so many bytes are left on both sides: before the first word there are fewer than eight, behind
            // the last one as many as the length's bits say. All lower bits of both addresses are clear.
            unsafe { destination.cast::<$value>().write_volatile(source.cast::<$value>().read_volatile()) };
            source = source.wrapping_add(size_of::<$value>());
            destination = destination.wrapping_add(size_of::<$value>());
        };
    }
    // Up to an aligned word.
    if destination.addr() & 1 != 0 {
        step!(u8);
        length -= 1;
    }
    if destination.addr() & 2 != 0 {
        step!(u16);
        length -= 2;
    }
    if destination.addr() & 4 != 0 {
        step!(u32);
        length -= 4;
    }
    let whole = length / WORD * WORD;
    // SAFETY: both sides are aligned now, and the words are within both.
    unsafe { copy_aligned(source.cast(), destination.cast(), length / WORD) };
    source = source.wrapping_add(whole);
    destination = destination.wrapping_add(whole);
    // The rest is shorter than a word.
    if length & 4 != 0 {
        step!(u32);
    }
    if length & 2 != 0 {
        step!(u16);
    }
    if length & 1 != 0 {
        // SAFETY: the last byte of both sides.
        unsafe { destination.write_volatile(source.read_volatile()) };
    }
}

/// Copies `words` words.
///
/// # Safety
/// As for [`copy_volatile`], and both sides must be aligned.
#[inline]
unsafe fn copy_aligned(mut source: *const u64, mut destination: *mut u64, mut words: usize) {
    // Of a page, the loop's own instructions would be a fifth of all.
    while words >= PARTS * EIGHT {
        for part in 0..PARTS {
            // SAFETY: so many parts are left on both sides.
            unsafe { copy_eight(source.add(part * EIGHT), destination.add(part * EIGHT)) };
        }
        source = source.wrapping_add(PARTS * EIGHT);
        destination = destination.wrapping_add(PARTS * EIGHT);
        words -= PARTS * EIGHT;
    }
    while words >= EIGHT {
        // SAFETY: eight words are left on both sides.
        unsafe { copy_eight(source, destination) };
        source = source.wrapping_add(EIGHT);
        destination = destination.wrapping_add(EIGHT);
        words -= EIGHT;
    }
    while words > 0 {
        // SAFETY: a word is left on both sides.
        unsafe { destination.write_volatile(source.read_volatile()) };
        source = source.wrapping_add(1);
        destination = destination.wrapping_add(1);
        words -= 1;
    }
}

/// Words that are read before they are written, as many as there are registers for.
const EIGHT: usize = 8;
/// Number of such parts that are copied between two looks at the end.
const PARTS: usize = 8;

/// Copies eight words.
///
/// # Safety
/// As for [`copy_aligned`].
#[inline(always)]
unsafe fn copy_eight(source: *const u64, destination: *mut u64) {
    // SAFETY: as promised by the caller.
    unsafe {
        let copy = [
            source.read_volatile(),
            source.add(1).read_volatile(),
            source.add(2).read_volatile(),
            source.add(3).read_volatile(),
            source.add(4).read_volatile(),
            source.add(5).read_volatile(),
            source.add(6).read_volatile(),
            source.add(7).read_volatile(),
        ];
        destination.write_volatile(copy[0]);
        destination.add(1).write_volatile(copy[1]);
        destination.add(2).write_volatile(copy[2]);
        destination.add(3).write_volatile(copy[3]);
        destination.add(4).write_volatile(copy[4]);
        destination.add(5).write_volatile(copy[5]);
        destination.add(6).write_volatile(copy[6]);
        destination.add(7).write_volatile(copy[7]);
    }
}

/// # Safety
/// As for [`copy_volatile`].
#[inline(always)]
unsafe fn copy_bytes(source: *const u8, destination: *mut u8, length: usize) {
    for index in 0..length {
        // SAFETY: `index < length`, and both sides are valid for that many bytes.
        unsafe {
            destination.wrapping_add(index).write_volatile(source.wrapping_add(index).read_volatile());
        }
    }
}

/// Copies between places that are aligned differently in whole aligned words, since RISC-V harts may trap on others:
/// aligned words are read, shifted together and written aligned.
///
/// ```text
/// source      ....abcd efghijkl mnop....     two neighbouring aligned words give
/// destination abcdefgh ijklmnop              one aligned word of the destination
/// ```
///
/// # Safety
/// As for [`copy_volatile`], `length` must be at least [`SHORT`], and the two sides must be aligned differently.
unsafe fn copy_words(mut source: *const u8, mut destination: *mut u8, mut length: usize) {
    // Up to the first aligned word of the destination, or to the next one, so that the aligned word that contains the
    // next source byte lies wholly inside the source.
    let mut head = destination.addr().wrapping_neg() % WORD;
    let shifted = (source.addr().wrapping_add(head)) % WORD;
    if shifted > head {
        head += WORD;
    }
    // SAFETY: `head < 2 * WORD <= length`, within both sides.
    unsafe { copy_bytes(source, destination, head) };
    source = source.wrapping_add(head);
    destination = destination.wrapping_add(head);
    length -= head;

    if length >= 2 * WORD {
        let right = 8 * shifted as u32;
        let left = 64 - right;
        let mut aligned = source.wrapping_sub(shifted).cast::<u64>();
        // SAFETY: aligned, and `shifted` bytes before `source` were copied in the head, so the word is inside.
        let mut low = u64::from_le(unsafe { aligned.read_volatile() });
        while length >= 5 * WORD {
            let to = destination.cast::<u64>();
            // SAFETY: aligned; the last word read ends `5 * WORD - shifted` bytes after `source`, where `5 * WORD`
            // are left.
            unsafe {
                let next = [
                    u64::from_le(aligned.add(1).read_volatile()),
                    u64::from_le(aligned.add(2).read_volatile()),
                    u64::from_le(aligned.add(3).read_volatile()),
                    u64::from_le(aligned.add(4).read_volatile()),
                ];
                to.write_volatile((low >> right | next[0] << left).to_le());
                to.add(1).write_volatile((next[0] >> right | next[1] << left).to_le());
                to.add(2).write_volatile((next[1] >> right | next[2] << left).to_le());
                to.add(3).write_volatile((next[2] >> right | next[3] << left).to_le());
                low = next[3];
            }
            aligned = aligned.wrapping_add(4);
            source = source.wrapping_add(4 * WORD);
            destination = destination.wrapping_add(4 * WORD);
            length -= 4 * WORD;
        }
        while length >= 2 * WORD {
            aligned = aligned.wrapping_add(1);
            // SAFETY: aligned; it ends `2 * WORD - shifted` bytes after `source`, where `2 * WORD` are left.
            let high = u64::from_le(unsafe { aligned.read_volatile() });
            // SAFETY: aligned, and two words are left.
            unsafe { destination.cast::<u64>().write_volatile((low >> right | high << left).to_le()) };
            low = high;
            source = source.wrapping_add(WORD);
            destination = destination.wrapping_add(WORD);
            length -= WORD;
        }
    }
    // SAFETY: the rest is within both sides.
    unsafe { copy_bytes(source, destination, length) };
}

/// Copies from one private buffer to another, as much as both hold.
pub fn copy(source: &[u8], destination: &mut [u8]) {
    let length = source.len().min(destination.len());
    destination[..length].copy_from_slice(&source[..length]);
}

/// # Safety
/// `start..start + length` must be valid for volatile access.
unsafe fn zero_volatile(mut start: *mut u8, mut length: usize) {
    while length > 0 && !start.addr().is_multiple_of(WORD) {
        // SAFETY: one byte is left.
        unsafe { start.write_volatile(0) };
        start = start.wrapping_add(1);
        length -= 1;
    }
    while length >= 16 * WORD {
        let words = start.cast::<u64>();
        // SAFETY: aligned, and sixteen words are left. (One volatile write of an array would be a call of `memcpy`.)
        unsafe {
            words.write_volatile(0);
            words.add(1).write_volatile(0);
            words.add(2).write_volatile(0);
            words.add(3).write_volatile(0);
            words.add(4).write_volatile(0);
            words.add(5).write_volatile(0);
            words.add(6).write_volatile(0);
            words.add(7).write_volatile(0);
            words.add(8).write_volatile(0);
            words.add(9).write_volatile(0);
            words.add(10).write_volatile(0);
            words.add(11).write_volatile(0);
            words.add(12).write_volatile(0);
            words.add(13).write_volatile(0);
            words.add(14).write_volatile(0);
            words.add(15).write_volatile(0);
        }
        start = start.wrapping_add(16 * WORD);
        length -= 16 * WORD;
    }
    while length >= WORD {
        // SAFETY: aligned, and a word is left.
        unsafe { start.cast::<u64>().write_volatile(0) };
        start = start.wrapping_add(WORD);
        length -= WORD;
    }
    while length > 0 {
        // SAFETY: one byte is left.
        unsafe { start.write_volatile(0) };
        start = start.wrapping_add(1);
        length -= 1;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    #[test]
    fn shared_words_lie_inside_and_aligned() {
        let mut words = [1u64, 2, 3];
        let start = words.as_mut_ptr().cast::<u8>();
        // SAFETY: the words outlive the bytes and are used through them alone meanwhile.
        let bytes = unsafe { SharedBytes::from_pointer(start, 24) };
        assert!(!bytes.is_empty());
        for (offset, word) in [(0, 1), (8, 2), (16, 3)] {
            assert_eq!(bytes.atomic_u64(offset).map(|one| one.load(Ordering::Relaxed)), Some(word));
        }
        for outside in [4, 17, 20, 24, usize::MAX - 7] {
            assert!(bytes.atomic_u64(outside).is_none(), "{outside}");
        }
        let one = bytes.slice(8..16).expect("inside");
        assert_eq!(one.atomic_u64(0).map(|one| one.load(Ordering::Relaxed)), Some(2));
        assert!(bytes.slice(8..15).expect("inside").atomic_u64(0).is_none());
        assert!(bytes.slice(8..8).expect("inside").is_empty());
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn copies_at_every_alignment(
            from in 0usize..24,
            to in 0usize..24,
            length in property::edges(0..300usize, &[8, 16, 32, 64, 128, 256]),
        ) {
            let source: Vec<u8> = (0..400usize).map(|index| (index * 7 + 1) as u8).collect();
            let mut destination = vec![0xeeu8; 400];
            let mut expected = destination.clone();
            expected[to..to + length].copy_from_slice(&source[from..from + length]);
            // SAFETY: both vectors are longer than the offset plus the length.
            unsafe { copy_volatile(source[from..].as_ptr(), destination[to..].as_mut_ptr(), length) };
            prop_assert_eq!(&destination, &expected);

            expected[from..from + length].fill(0);
            // SAFETY: as above.
            unsafe { zero_volatile(destination[from..].as_mut_ptr(), length) };
            prop_assert_eq!(destination, expected);
        }
    }

    #[test]
    fn parts_and_words_stay_inside() {
        let mut memory = [0u64; 4];
        let start = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: the array lives longer than `bytes`, and is not touched directly while it exists.
        let bytes = unsafe { SharedBytes::from_pointer(start, 32) };
        assert!(bytes.slice(0..33).is_none());
        #[expect(clippy::reversed_empty_ranges)]
        let reversed = 5..4;
        assert!(bytes.slice(reversed).is_none());
        assert_eq!(bytes.slice(32..32).map(|part| part.len()), Some(0));
        assert!(bytes.atomic_u64(24).is_some());
        assert!(bytes.atomic_u64(25).is_none());
        assert!(bytes.atomic_u64(32).is_none());
        assert!(bytes.atomic_u64(usize::MAX).is_none());
        assert!(bytes.atomic_words::<4>(0).is_some());
        assert!(bytes.atomic_words::<3>(8).is_some());
        assert!(bytes.atomic_words::<3>(16).is_none());
        assert!(bytes.atomic_words::<2>(16).is_some());
        assert!(bytes.atomic_words::<2>(4).is_none());
        assert!(bytes.atomic_words::<2>(usize::MAX - 7).is_none());
        assert!(bytes.atomic_words::<5>(0).is_none());
        assert!(bytes.atomic_u32(28).is_some());
        assert!(bytes.atomic_u32(30).is_none());
        assert!(bytes.atomic_u32(32).is_none());
        assert_eq!(bytes.byte(31), Some(0));
        assert_eq!(bytes.byte(32), None);
        bytes.atomic_u32(4).expect("aligned").store(0x0403_0201, Ordering::Relaxed);
        let mut copy = [0; 6];
        assert_eq!(bytes.slice(3..8).expect("inside").copy_to(&mut copy), 5);
        assert_eq!(copy, [0, 1, 2, 3, 4, 0]);
    }
}
