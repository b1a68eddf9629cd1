//! The bytes in a pipe: a queue of blocks, each of which is a queue of bytes.
//!
//! A pipe holds up to [`BLOCK`] bytes in one buffer, which grows by doubling and is copied then. A pipe that was made
//! larger (`F_SETPIPE_SZ`) does not copy more than that in one step: it goes on in another block when one is full, and
//! frees a block when it was read. Rejected: one buffer of any size, whose growth to a megabyte would be one step.

use alloc::collections::VecDeque;

use abi_unix::Errno;

use crate::files::byte_queue::ByteQueue;

/// Number of bytes of a block.
pub(crate) const BLOCK: usize = 65536;

/// A first-in first-out queue of bytes.
///
/// FULL-BEFORE-NEXT: only the last block with bytes has room, and behind it there is at most one block, without bytes,
/// that was reserved. So the first block is empty only if the queue is.
pub(crate) struct PipeBytes {
    first: ByteQueue,
    others: VecDeque<ByteQueue>,
    /// Number of bytes in the others.
    behind: usize,
}

impl PipeBytes {
    /// Creates an empty queue without a buffer.
    pub(crate) const fn new() -> PipeBytes {
        PipeBytes { first: ByteQueue::new(), others: VecDeque::new(), behind: 0 }
    }

    /// Returns the one block of a queue that has room for no other.
    #[inline(always)]
    pub(crate) fn undivided(&mut self) -> Option<&mut ByteQueue> {
        if self.others.capacity() == 0 { Some(&mut self.first) } else { None }
    }

    /// Returns the number of bytes in the queue.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.first.len() + self.behind
    }

    /// Returns whether there is nothing to read.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// Returns the size of all buffers.
    #[inline(always)]
    pub(crate) fn memory(&self) -> usize {
        if self.others.capacity() == 0 { self.first.memory() } else { self.memory_of_all() }
    }

    #[cold]
    fn memory_of_all(&self) -> usize {
        let others: usize = self.others.iter().map(ByteQueue::memory).sum();
        self.first.memory() + others + self.others.capacity() * size_of::<ByteQueue>()
    }

    /// Returns the number of blocks beside the first that hold so many bytes, if the first of them is nearly read and
    /// the last is reserved.
    fn blocks_for(capacity: usize) -> usize {
        if capacity > BLOCK { capacity / BLOCK + 1 } else { 0 }
    }

    /// Returns the size of all buffers after [`prepare`](Self::prepare).
    pub(crate) fn memory_for(&self, capacity: usize) -> usize {
        let more = Self::blocks_for(capacity).saturating_sub(self.others.capacity());
        self.memory() + more * size_of::<ByteQueue>()
    }

    /// Makes places for the blocks of so many bytes. `ENOMEM` if the kernel heap is exhausted.
    pub(crate) fn prepare(&mut self, capacity: usize) -> Result<(), Errno> {
        let blocks = Self::blocks_for(capacity);
        if blocks <= self.others.capacity() {
            return Ok(());
        }
        self.others.try_reserve_exact(blocks - self.others.len()).map_err(|_| Errno::ENOMEM)
    }

    /// Returns the block with room, and the number of bytes that do not fit into it of so many more.
    #[inline(always)]
    fn last(&self, more: usize) -> (&ByteQueue, usize) {
        let last = match self.last_other() {
            None => &self.first,
            Some(index) => &self.others[index],
        };
        (last, (last.len() + more).saturating_sub(BLOCK))
    }

    /// Returns the index of the last block with bytes, if that is not the first block.
    #[inline(always)]
    fn last_other(&self) -> Option<usize> {
        if self.behind == 0 {
            return None;
        }
        let last = self.others.len() - 1;
        Some(if self.others[last].is_empty() { last - 1 } else { last })
    }

    /// Returns the size of the reserved block behind the last one with bytes.
    fn reserved(&self) -> usize {
        self.others.back().filter(|block| block.is_empty()).map_or(0, ByteQueue::memory)
    }

    /// Returns whether [`reserve`](Self::reserve) would need memory.
    #[inline(always)]
    pub(crate) fn would_grow(&self, more: usize) -> bool {
        let (last, beyond) = self.last(more);
        last.would_grow(more, BLOCK) || beyond > 0 && beyond > self.reserved()
    }

    /// Returns the size of all buffers after [`reserve`](Self::reserve).
    pub(crate) fn memory_with(&self, more: usize) -> usize {
        let (last, beyond) = self.last(more);
        let grown = last.memory_with(more, BLOCK) - last.memory();
        let reserved = self.reserved();
        let next = if beyond > reserved { ByteQueue::new().memory_with(beyond, BLOCK) - reserved } else { 0 };
        self.memory() + grown + next
    }

    /// Makes room for at least `more` bytes, at most [`BLOCK`]: in the last block, and in one behind it that was
    /// [prepared](Self::prepare).
    ///
    /// `ENOMEM` if the kernel heap is exhausted; the bytes are unchanged then.
    pub(crate) fn reserve(&mut self, more: usize) -> Result<(), Errno> {
        let (_, beyond) = self.last(more);
        match self.last_other() {
            None => self.first.reserve(more, BLOCK)?,
            Some(index) => self.others[index].reserve(more, BLOCK)?,
        }
        if beyond == 0 {
            return Ok(());
        }
        if let Some(reserved) = self.others.back_mut().filter(|block| block.is_empty()) {
            return reserved.reserve(beyond, BLOCK);
        }
        let mut next = ByteQueue::new();
        next.reserve(beyond, BLOCK)?;
        self.others.push_back(next);
        Ok(())
    }

    /// Returns the bytes to read of the first block, in two pieces.
    pub(crate) fn pieces(&self) -> (&[u8], &[u8]) {
        self.first.pieces()
    }

    /// Returns the first contiguous bytes to read.
    #[cfg(test)]
    fn front(&self) -> &[u8] {
        self.first.front()
    }

    /// Removes bytes of the first block from the front.
    pub(crate) fn consume(&mut self, count: usize) {
        self.with_first(|first| first.consume(count));
    }

    /// Lets bytes of the first block be removed.
    pub(crate) fn with_first<R>(&mut self, remove: impl FnOnce(&mut ByteQueue) -> R) -> R {
        let result = remove(&mut self.first);
        if self.first.is_empty() && !self.others.is_empty() {
            self.go_on_with_next();
        }
        result
    }

    #[cold]
    fn go_on_with_next(&mut self) {
        if let Some(next) = self.others.pop_front() {
            self.behind -= next.len();
            self.first = next;
        }
    }

    /// Returns the first contiguous free bytes behind the data.
    #[inline(always)]
    pub(crate) fn back(&mut self) -> &mut [u8] {
        self.block_to_fill().back()
    }

    /// Adds bytes that were written to [`back`](Self::back).
    #[inline(always)]
    pub(crate) fn produce(&mut self, count: usize) {
        if self.others.is_empty() {
            self.first.produce(count);
            return;
        }
        let before = self.first.len();
        self.block_to_fill().produce(count);
        if self.first.len() == before {
            self.behind += count;
        }
    }

    /// Returns the block that the next bytes go to.
    #[inline(always)]
    fn block_to_fill(&mut self) -> &mut ByteQueue {
        if self.others.is_empty() { &mut self.first } else { self.block_to_fill_of_many() }
    }

    #[cold]
    fn block_to_fill_of_many(&mut self) -> &mut ByteQueue {
        let next = match self.last_other() {
            None if self.first.len() < BLOCK => return &mut self.first,
            None => 0,
            Some(index) if self.others[index].len() < BLOCK => index,
            Some(index) => index + 1,
        };
        let last = self.others.len() - 1;
        &mut self.others[next.min(last)]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque as Model;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(property::cases(64))]

        /// Whatever is added comes out in its order, and the sizes that are charged before are those that are there.
        #[test]
        fn behaves_as_a_queue_of_any_length(steps in prop::collection::vec((any::<bool>(), 0usize..100_000), 0..60)) {
            let mut queue = PipeBytes::new();
            let capacity = 4 * BLOCK;
            let memory = queue.memory_for(capacity);
            queue.prepare(capacity).unwrap();
            prop_assert!(queue.memory() >= memory);
            let mut model = Model::new();
            let mut next = 0u8;
            for (writes, count) in steps {
                let mut left = if writes { count.min(capacity - model.len()) } else { count };
                while left > 0 {
                    if writes {
                        let wanted = left.min(BLOCK);
                        if queue.would_grow(wanted) {
                            let memory = queue.memory_with(wanted);
                            queue.reserve(wanted).unwrap();
                            prop_assert_eq!(queue.memory(), memory);
                            prop_assert!(!queue.would_grow(wanted));
                        } else {
                            prop_assert_eq!(queue.memory_with(wanted), queue.memory());
                        }
                        let piece = queue.back();
                        let count = wanted.min(piece.len());
                        prop_assert!(count > 0);
                        for byte in &mut piece[..count] {
                            next = next.wrapping_mul(5).wrapping_add(1);
                            *byte = next;
                            model.push_back(next);
                        }
                        queue.produce(count);
                        left -= count;
                    } else {
                        let count = queue.front().len().min(left);
                        if count == 0 {
                            break;
                        }
                        for &byte in &queue.front()[..count] {
                            prop_assert_eq!(Some(byte), model.pop_front());
                        }
                        queue.consume(count);
                        left -= count;
                    }
                    prop_assert_eq!((queue.len(), queue.is_empty()), (model.len(), model.is_empty()));
                }
            }
        }
    }
}
