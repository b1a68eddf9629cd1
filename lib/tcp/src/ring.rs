//! A ring of bytes, into which bytes can also be put ahead of those that are still missing.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

/// A first-in, first-out queue of bytes in fixed memory.
#[derive(Debug)]
pub struct Ring {
    bytes: Vec<u8>,
    /// Place of the first byte.
    start: usize,
    length: usize,
}

impl Ring {
    /// Makes an empty ring for `capacity` bytes.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(capacity: usize) -> Result<Ring, TryReserveError> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(capacity)?;
        bytes.resize(capacity, 0);
        Ok(Ring { bytes, start: 0, length: 0 })
    }

    /// Returns the number of bytes that have room.
    #[inline(always)]
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the number of bytes in the ring.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there is no byte.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the number of further bytes that have room.
    #[inline(always)]
    pub fn free(&self) -> usize {
        self.bytes.len() - self.length
    }

    /// Returns the place of the byte with this offset from the first.
    #[inline(always)]
    fn place(&self, offset: usize) -> usize {
        let place = self.start + offset;
        if place >= self.bytes.len() { place - self.bytes.len() } else { place }
    }

    /// Offers the first contiguous room behind the last byte to `fill`, which returns how many bytes of it are taken.
    /// Returns these, and how many were offered.
    pub fn fill(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> (usize, usize) {
        let free = self.free();
        if self.length == 0 {
            self.start = 0;
        }
        let at = self.place(self.length);
        let end = self.bytes.len().min(at + free);
        let room = &mut self.bytes[at..end];
        let offered = room.len();
        let taken = fill(room).min(offered);
        self.length += taken;
        (taken, offered)
    }

    /// Offers the first contiguous bytes to `take`, which returns how many of them are removed. Returns these, and how
    /// many were offered.
    pub fn take(&mut self, take: impl FnOnce(&[u8]) -> usize) -> (usize, usize) {
        let bytes = self.first(self.length);
        let offered = bytes.len();
        let taken = take(bytes).min(offered);
        self.drop_first(taken);
        (taken, offered)
    }

    /// Returns the first contiguous bytes, at most so many.
    pub fn first(&self, length: usize) -> &[u8] {
        let end = self.bytes.len().min(self.start + length.min(self.length));
        &self.bytes[self.start..end]
    }

    /// Removes the first bytes.
    #[inline(always)]
    pub(crate) fn drop_first(&mut self, count: usize) {
        let count = count.min(self.length);
        self.start = self.place(count);
        self.length -= count;
    }

    /// Puts bytes at an offset from the first one; they are not in the ring until it [grows](Self::grow). The caller
    /// ensures that there is room.
    #[inline(always)]
    pub(crate) fn put(&mut self, offset: usize, bytes: &[u8]) {
        let at = self.place(offset);
        let whole = (self.bytes.len() - at).min(bytes.len());
        let (first, second) = bytes.split_at(whole);
        self.bytes[at..at + whole].copy_from_slice(first);
        if !second.is_empty() {
            self.bytes[..second.len()].copy_from_slice(second);
        }
    }

    /// Takes bytes into the ring that were put behind the last one.
    #[inline(always)]
    pub(crate) fn grow(&mut self, count: usize) {
        self.length = (self.length + count).min(self.bytes.len());
    }

    /// Copies the bytes from an offset on.
    #[inline(always)]
    pub(crate) fn copy(&self, offset: usize, into: &mut [u8]) {
        let at = self.place(offset);
        let whole = (self.bytes.len() - at).min(into.len());
        let (first, second) = into.split_at_mut(whole);
        first.copy_from_slice(&self.bytes[at..at + whole]);
        if !second.is_empty() {
            second.copy_from_slice(&self.bytes[..second.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn a_ring_is_a_queue(
            capacity in 1usize..40,
            steps in prop::collection::vec((0u8..4, 0usize..50, any::<u8>()), 0..100),
        ) {
            let mut ring = Ring::new(capacity).unwrap();
            let mut model = VecDeque::new();
            for (step, count, byte) in steps {
                match step {
                    0 => {
                        let (taken, offered) = ring.fill(|room| {
                            let count = count.min(room.len());
                            room[..count].fill(byte);
                            count
                        });
                        prop_assert!(taken == count.min(offered) && (offered > 0 || model.len() == capacity));
                        model.extend(std::iter::repeat_n(byte, taken));
                    }
                    1 => {
                        let (taken, _) = ring.take(|bytes| {
                            assert!(bytes.iter().eq(model.iter().take(bytes.len())));
                            count
                        });
                        model.drain(..taken);
                    }
                    2 => {
                        // Bytes that come ahead of one that is missing.
                        let room = ring.free();
                        if room > 1 {
                            let count = count.min(room - 1);
                            let ahead: Vec<u8> = (0..count as u8).map(|index| byte.wrapping_add(index)).collect();
                            ring.put(ring.len() + 1, &ahead);
                            prop_assert_eq!(ring.len(), model.len());
                            ring.put(ring.len(), &[!byte]);
                            ring.grow(1 + count);
                            model.push_back(!byte);
                            model.extend(ahead);
                        }
                    }
                    _ => {
                        let offset = count.min(model.len());
                        let mut copy = std::vec![0; model.len() - offset];
                        ring.copy(offset, &mut copy);
                        prop_assert!(copy.iter().eq(model.iter().skip(offset)));
                    }
                }
                prop_assert_eq!((ring.len(), ring.free()), (model.len(), capacity - model.len()));
            }
        }
    }
}
