//! Buffers that a call in flight can own.
//!
//! The kernel reads or writes a buffer while the coroutine that made the call may have been dropped. A borrowed slice
//! cannot promise to outlive that, so calls take buffers by value and give them back with the result. Such a buffer is
//! memory that does not move with its owner: a vector, a box, a static slice.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Memory that the kernel can read while a call is in flight.
///
/// # Safety
///
/// `pointer` and `length` must describe initialised memory that stays valid and is not written while the value exists
/// and is not used, wherever the value itself is moved.
#[doc(alias = "IoBuf")]
pub unsafe trait Buffer: Send + 'static {
    /// Returns the address of the first byte.
    fn pointer(&self) -> *const u8;
    /// Returns the number of bytes.
    fn length(&self) -> usize;
}

/// Memory that the kernel can write while a call is in flight.
///
/// # Safety
///
/// As for [`Buffer`], and nothing else may read the memory either.
#[doc(alias = "IoBufMut")]
pub unsafe trait BufferMut: Buffer {
    /// Returns the address of the first byte.
    fn pointer_mut(&mut self) -> *mut u8;
}

macro_rules! buffers {
    ($($(#[$why:meta])* $type:ty;)*) => { $(
        // SAFETY: the memory is on the heap or static, owned or shared without writers, and does not move with the
        // value.
        unsafe impl Buffer for $type {
            fn pointer(&self) -> *const u8 { self.as_ptr() }
            fn length(&self) -> usize { self.len() }
        }
    )* };
}

buffers! {
    Vec<u8>;
    String;
    &'static [u8];
    &'static str;
    &'static mut [u8];
    Box<[u8]>;
    Arc<[u8]>;
    Arc<Vec<u8>>;
}

// SAFETY: the array is on the heap.
unsafe impl<const N: usize> Buffer for Box<[u8; N]> {
    fn pointer(&self) -> *const u8 {
        self.as_ptr()
    }
    fn length(&self) -> usize {
        N
    }
}

// SAFETY: a vector owns its memory alone.
unsafe impl BufferMut for Vec<u8> {
    fn pointer_mut(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }
}

// SAFETY: a box owns its memory alone.
unsafe impl BufferMut for Box<[u8]> {
    fn pointer_mut(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }
}

// SAFETY: a box owns its memory alone.
unsafe impl<const N: usize> BufferMut for Box<[u8; N]> {
    fn pointer_mut(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }
}

// SAFETY: the reference is exclusive for ever.
unsafe impl BufferMut for &'static mut [u8] {
    fn pointer_mut(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }
}

/// A range of a buffer: a call reads or writes these bytes only.
#[doc(alias = "Slice")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part<B> {
    buffer: B,
    start: usize,
    end: usize,
}

impl<B: Buffer> Part<B> {
    /// Selects the bytes from `start` up to `end`.
    ///
    /// # Panics
    ///
    /// If the range does not lie in the buffer.
    pub fn new(buffer: B, start: usize, end: usize) -> Part<B> {
        assert!(start <= end && end <= buffer.length(), "the range {start}..{end} lies outside of the buffer");
        Part { buffer, start, end }
    }

    /// Returns the end of the range in the buffer.
    pub fn end(&self) -> usize {
        self.end
    }

    /// Returns the whole buffer.
    pub fn into_inner(self) -> B {
        self.buffer
    }
}

// SAFETY: the range lies in the buffer, which this owns. The check is repeated in `pointer` and `length`, because a
// buffer may have become shorter (a buffer with interior mutability would have to lie about its length).
unsafe impl<B: Buffer> Buffer for Part<B> {
    fn pointer(&self) -> *const u8 {
        self.buffer.pointer().wrapping_add(self.start)
    }
    fn length(&self) -> usize {
        self.end.min(self.buffer.length()).saturating_sub(self.start)
    }
}

// SAFETY: as for `Buffer`.
unsafe impl<B: BufferMut> BufferMut for Part<B> {
    fn pointer_mut(&mut self) -> *mut u8 {
        self.buffer.pointer_mut().wrapping_add(self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn a_part_is_the_range_of_its_buffer() {
        let buffer = vec![0u8; 10];
        let base = buffer.pointer();
        let part = Part::new(buffer, 3, 7);
        assert_eq!((part.pointer() as usize - base as usize, part.length()), (3, 4));
        assert_eq!(part.into_inner().len(), 10);
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn a_part_does_not_leave_its_buffer() {
        Part::new(vec![0u8; 10], 3, 11);
    }
}
