//! A queue of bytes with a growing buffer and contiguous pieces at both ends, so that data moves between user pages and
//! the queue in one copy.

use alloc::vec::Vec;

use abi_unix::Errno;

/// A first-in first-out queue of bytes.
///
/// The buffer's length is a power of two. It starts empty, grows by doubling while the queue is in use, and is freed
/// when the queue has been drained and the buffer is larger than `KEPT`.
#[derive(Default)]
pub(crate) struct ByteQueue {
    buffer: Vec<u8>,
    head: usize,
    length: usize,
}

impl ByteQueue {
    /// Size of the largest buffer that a drained queue keeps.
    const KEPT: usize = 512;
    /// Size of the first buffer.
    const SMALLEST: usize = 64;

    /// Creates an empty queue without a buffer.
    pub(crate) const fn new() -> ByteQueue {
        ByteQueue { buffer: Vec::new(), head: 0, length: 0 }
    }

    /// Returns the number of bytes in the queue.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Returns the size of the buffer.
    pub(crate) fn memory(&self) -> usize {
        self.buffer.len()
    }

    /// Returns whether there is nothing to read.
    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns whether [`reserve`](Self::reserve) would need memory.
    pub(crate) fn would_grow(&self, more: usize, limit: usize) -> bool {
        (self.length + more).min(limit) > self.buffer.len()
    }

    /// Returns the size of the buffer after [`reserve`](Self::reserve).
    pub(crate) fn memory_with(&self, more: usize, limit: usize) -> usize {
        let needed = (self.length + more).min(limit);
        if needed <= self.buffer.len() { self.buffer.len() } else { Self::size_for(needed) }
    }

    fn size_for(needed: usize) -> usize {
        needed.next_power_of_two().max(Self::SMALLEST)
    }

    /// Makes room for at least `more` bytes without exceeding `limit` bytes in all.
    ///
    /// `ENOMEM` if the kernel heap is exhausted; the queue is unchanged then.
    pub(crate) fn reserve(&mut self, more: usize, limit: usize) -> Result<(), Errno> {
        let needed = (self.length + more).min(limit);
        if needed <= self.buffer.len() {
            return Ok(());
        }
        let size = Self::size_for(needed);
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(size).map_err(|_| Errno::ENOMEM)?;
        let (first, second) = self.pieces();
        buffer.extend_from_slice(first);
        buffer.extend_from_slice(second);
        buffer.resize(size, 0);
        self.buffer = buffer;
        self.head = 0;
        Ok(())
    }

    /// Returns all bytes to read, in two pieces.
    pub(crate) fn pieces(&self) -> (&[u8], &[u8]) {
        let end = self.head + self.length;
        match end.checked_sub(self.buffer.len()) {
            None | Some(0) => (&self.buffer[self.head..end], &[]),
            Some(wrapped) => (&self.buffer[self.head..], &self.buffer[..wrapped]),
        }
    }

    /// Returns the first contiguous bytes to read.
    pub(crate) fn front(&self) -> &[u8] {
        self.pieces().0
    }

    /// Removes bytes from the front.
    pub(crate) fn consume(&mut self, count: usize) {
        let count = count.min(self.length);
        self.length -= count;
        if self.length == 0 {
            self.head = 0;
            if self.buffer.len() > Self::KEPT {
                self.buffer = Vec::new();
            }
        } else {
            self.head = (self.head + count) & (self.buffer.len() - 1);
        }
    }

    /// Returns the first contiguous free bytes behind the data.
    pub(crate) fn back(&mut self) -> &mut [u8] {
        let size = self.buffer.len();
        let end = self.head + self.length;
        match end.checked_sub(size) {
            None => &mut self.buffer[end..],
            Some(wrapped) => &mut self.buffer[wrapped..self.head],
        }
    }

    /// Adds bytes that were written to [`back`](Self::back).
    pub(crate) fn produce(&mut self, count: usize) {
        self.length = (self.length + count).min(self.buffer.len());
    }

    /// Takes the last bytes that were [added](Self::produce) back.
    pub(crate) fn retract(&mut self, count: usize) {
        self.length = self.length.saturating_sub(count);
    }

    /// Adds as many bytes as fit; returns their number.
    #[cfg(test)]
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let mut done = 0;
        while done < bytes.len() {
            let room = self.back();
            let count = room.len().min(bytes.len() - done);
            if count == 0 {
                break;
            }
            room[..count].copy_from_slice(&bytes[done..done + count]);
            self.produce(count);
            done += count;
        }
        done
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
        fn behaves_as_a_queue(operations in prop::collection::vec((any::<bool>(), 0usize..300), 0..200)) {
            let mut queue = ByteQueue::new();
            let mut model = VecDeque::new();
            let mut next = 0u8;
            for (write, count) in operations {
                if write {
                    let memory = queue.memory_with(count, 1024);
                    queue.reserve(count, 1024).unwrap();
                    prop_assert_eq!(queue.memory(), memory);
                    let bytes: Vec<u8> = (0..count).map(|_| { next = next.wrapping_add(1); next }).collect();
                    let limit = count.min(1024usize.saturating_sub(model.len()));
                    let done = queue.push(&bytes[..limit]);
                    prop_assert_eq!(done, limit);
                    model.extend(&bytes[..done]);
                } else {
                    let piece = queue.front();
                    let count = count.min(piece.len());
                    for &byte in &piece[..count] {
                        prop_assert_eq!(Some(byte), model.pop_front());
                    }
                    queue.consume(count);
                }
                prop_assert_eq!(queue.len(), model.len());
            }
        }
    }
}
