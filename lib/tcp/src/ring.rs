//! A ring of bytes, into which bytes can also be put ahead of those that are still missing.
//!
//! **The problem.** A connection over a long way needs room for many bytes, most connections hold none, and the memory
//! of a stranger's bytes must be bounded. Memory of the largest size for each would be a thousand times too much.
//!
//! **The choice.** A ring has a limit, and no memory before there are bytes. Its owner gives it memory in
//! [steps](Ring::make_room), each of which is a bounded amount of work: the first block doubles from a few hundred
//! bytes to a page, and then further pages follow behind. Consumed pages are used again for later bytes, and the owner
//! takes [back](Ring::shrink) what a ring has not used for a while.

use alloc::collections::{TryReserveError, VecDeque};
use alloc::vec::Vec;

/// Bytes of a block, when there are several. No allocation is larger, so that memory in pieces is enough.
pub const BLOCK: usize = 4096;
/// First memory of a ring: enough for small messages.
pub const SMALLEST: usize = 512;
/// Further blocks for which the list grows at once.
const LISTED: usize = 8;
/// Blocks that are given back at once.
const SHRUNK: usize = 16;

/// A first-in, first-out queue of bytes with a limit.
///
/// The bytes lie in the blocks one behind the other, the first one at `start` in the first block, which is therefore
/// the only one that can be short.
#[derive(Debug, Default)]
pub struct Ring {
    first: Vec<u8>,
    /// Further blocks, of [`BLOCK`] bytes each; there are none unless the first one is as large.
    more: VecDeque<Vec<u8>>,
    /// Place of the first byte in the first block.
    start: u32,
    length: u32,
    limit: u32,
}

impl Ring {
    /// Makes an empty ring for `limit` bytes, without memory.
    pub fn new(limit: usize) -> Ring {
        Ring { limit: u32::try_from(limit).unwrap_or(u32::MAX / 2), ..Ring::default() }
    }

    /// Returns the number of bytes that may be in the ring.
    #[inline(always)]
    pub fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Raises the limit.
    pub(crate) fn raise_limit(&mut self, limit: usize) {
        self.limit = self.limit.max(limit as u32);
    }

    /// Lowers the limit to what the memory holds wherever in the first block the first byte lies, but no further than
    /// this.
    pub(crate) fn lower_limit(&mut self, limit: usize) {
        let memory = self.first.len() + self.more.len() * BLOCK;
        let held = if self.more.is_empty() { memory } else { memory - (BLOCK - 1) };
        self.limit = self.limit.min(held.max(limit).max(self.len() + self.room()) as u32);
    }

    /// Returns the number of bytes in the ring.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether there is no byte.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the number of further bytes that the limit allows.
    #[inline(always)]
    pub fn free(&self) -> usize {
        (self.limit - self.length) as usize
    }

    /// Returns the number of further bytes that have memory.
    #[inline(always)]
    fn backed(&self) -> usize {
        self.first.len() + self.more.len() * BLOCK - self.start as usize - self.length as usize
    }

    /// Returns the number of further bytes that have room: memory, and the limit allows them.
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.backed().min(self.free())
    }

    // Memory.

    /// Returns the bytes of memory of the ring.
    pub fn memory(&self) -> usize {
        self.first.len() + self.more.len() * BLOCK + self.more.capacity() * size_of::<Vec<u8>>()
    }

    /// Whether the bytes are moved to the front of the only block, which makes room without memory: fewer bytes than
    /// were consumed, or the block may not grow.
    fn may_move(&self) -> bool {
        let (start, size) = (self.start as usize, self.first.len());
        self.more.is_empty() && start > 0 && (start > size / 2 || size < BLOCK && size == self.next_size())
    }

    /// Returns the size to which the first block grows next.
    fn next_size(&self) -> usize {
        (self.first.len() * 2).clamp(SMALLEST, BLOCK).min(self.limit().max(1))
    }

    /// Adds memory for so many further bytes, as far as the limit allows, in so many steps at most. Each that takes
    /// memory is admitted first: `admits` is called with the bytes that it takes, and with the bytes of memory after
    /// it. Returns `false` if there is no room for lack of memory; the steps may have been too few all the same.
    pub fn make_room(&mut self, bytes: usize, steps: usize, mut admits: impl FnMut(usize, usize) -> bool) -> bool {
        for _ in 0..steps {
            if self.room() >= bytes.min(self.free()) {
                break;
            }
            let step = self.step();
            let is_made = (step == 0 || admits(step, self.memory() + step)) && self.extend().is_ok();
            if !is_made {
                // There may be room in front of the bytes.
                let may_move = self.more.is_empty() && self.start > 0;
                if may_move {
                    self.move_to_front();
                }
                return may_move && self.room() >= bytes.min(self.free());
            }
        }
        true
    }

    /// Moves the bytes, with all that was put behind the last one, to the front of the only block.
    fn move_to_front(&mut self) {
        self.first.copy_within(self.start as usize.., 0);
        self.start = 0;
    }

    /// Returns the bytes of memory that the next [step](Self::extend) takes.
    fn step(&self) -> usize {
        if self.may_move() {
            return 0;
        }
        match self.next_size().saturating_sub(self.first.len()) {
            0 if self.more.len() == self.more.capacity() => BLOCK + LISTED * size_of::<Vec<u8>>(),
            0 => BLOCK,
            more => more,
        }
    }

    /// Adds memory by one step. The ring has less than its limit allows.
    fn extend(&mut self) -> Result<(), TryReserveError> {
        if self.may_move() {
            self.move_to_front();
            return Ok(());
        }
        let size = self.next_size();
        if size > self.first.len() {
            let mut block = Vec::new();
            block.try_reserve_exact(size)?;
            block.extend_from_slice(&self.first[self.start as usize..]);
            block.resize(size, 0);
            (self.first, self.start) = (block, 0);
            return Ok(());
        }
        let mut block = Vec::new();
        block.try_reserve_exact(BLOCK)?;
        if self.more.len() == self.more.capacity() {
            self.more.try_reserve_exact(LISTED)?;
        }
        block.resize(BLOCK, 0);
        self.more.push_back(block);
        Ok(())
    }

    /// Gives back memory that the bytes do not need, of which the last one lies `used` bytes behind the first one: half
    /// of the further blocks, but not more than [`SHRUNK`], or all memory of a ring that has little. Returns whether
    /// there is more to give back.
    pub fn shrink(&mut self, used: usize) -> bool {
        let used = used.max(self.len());
        if used == 0 {
            self.start = 0;
            if self.more.len() <= 1 {
                self.clear();
                return false;
            }
        }
        let needed = (self.start as usize + used).saturating_sub(self.first.len()).div_ceil(BLOCK);
        let spare = self.more.len().saturating_sub(needed);
        self.more.truncate(self.more.len() - spare.div_ceil(2).min(SHRUNK));
        spare > 2 * SHRUNK
    }

    /// Gives all memory back, and the bytes with it.
    pub fn clear(&mut self) {
        *self = Ring { limit: self.limit, ..Ring::default() };
    }

    /// Shows up to so many bytes behind the first ones, in parts, until `look` wants no more.
    pub fn look(&self, skip: usize, length: usize, mut look: impl FnMut(&[u8]) -> bool) {
        let skip = skip.min(self.len());
        let (mut at, mut left) = (self.start as usize + skip, length.min(self.len() - skip));
        while left > 0 {
            let rest = match at.checked_sub(self.first.len()) {
                None => &self.first[at..],
                Some(behind) => &self.more[behind / BLOCK][behind % BLOCK..],
            };
            let part = &rest[..rest.len().min(left)];
            if !look(part) {
                return;
            }
            (at, left) = (at + part.len(), left - part.len());
        }
    }

    // Bytes.

    /// Offers the first contiguous room behind the last byte to `fill`, which returns how many bytes of it are taken.
    /// Returns these, and how many were offered. Nothing may lie behind the last byte.
    #[inline(always)]
    pub fn fill(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> (usize, usize) {
        self.rewind();
        let room = self.room();
        let part = match room {
            0 => &mut [],
            _ => {
                let (block, at) = self.block_mut(self.length as usize);
                let end = block.len().min(at + room);
                &mut block[at..end]
            }
        };
        let offered = part.len();
        let taken = fill(part).min(offered);
        self.length += taken as u32;
        (taken, offered)
    }

    /// Offers the first contiguous bytes to `take`, which returns how many of them are removed. Returns these, and how
    /// many were offered.
    #[inline(always)]
    pub fn take(&mut self, take: impl FnOnce(&[u8]) -> usize) -> (usize, usize) {
        let bytes = self.first(self.len());
        let offered = bytes.len();
        let taken = take(bytes).min(offered);
        self.drop_first(taken);
        (taken, offered)
    }

    /// Returns the first contiguous bytes, at most so many.
    #[inline(always)]
    pub fn first(&self, length: usize) -> &[u8] {
        let start = self.start as usize;
        let end = self.first.len().min(start + length.min(self.len()));
        &self.first[start..end]
    }

    /// Returns the block with the byte at this offset from the first one, and its place there. There must be one.
    #[inline(always)]
    fn block_mut(&mut self, offset: usize) -> (&mut [u8], usize) {
        let at = self.start as usize + offset;
        match at.checked_sub(self.first.len()) {
            None => (&mut self.first, at),
            Some(behind) => (&mut self.more[behind / BLOCK], behind % BLOCK),
        }
    }

    /// Removes the first bytes.
    #[inline(always)]
    pub(crate) fn drop_first(&mut self, count: usize) {
        let count = (count as u32).min(self.length);
        self.start += count;
        self.length -= count;
        if self.start as usize >= self.first.len() {
            self.rotate();
        }
    }

    /// Has consumed blocks used again behind the others.
    fn rotate(&mut self) {
        while self.start as usize >= self.first.len()
            && let Some(next) = self.more.pop_front()
        {
            self.start -= self.first.len() as u32;
            let consumed = core::mem::replace(&mut self.first, next);
            self.more.push_back(consumed);
        }
    }

    /// Has the next byte put at the front, if there is none now. Nothing may lie behind the last byte.
    #[inline(always)]
    pub(crate) fn rewind(&mut self) {
        if self.length == 0 {
            self.start = 0;
        }
    }

    /// Puts bytes at an offset from the first one; they are not in the ring until it [grows](Self::grow). The caller
    /// ensures that there is memory.
    #[inline(always)]
    pub(crate) fn put(&mut self, offset: usize, bytes: &[u8]) {
        let at = self.start as usize + offset;
        match self.first.get_mut(at..at + bytes.len()) {
            Some(place) => place.copy_from_slice(bytes),
            None => self.put_in_parts(offset, bytes),
        }
    }

    #[inline(never)]
    fn put_in_parts(&mut self, mut offset: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (block, at) = self.block_mut(offset);
            let (part, rest) = bytes.split_at(bytes.len().min(block.len() - at));
            block[at..at + part.len()].copy_from_slice(part);
            offset += part.len();
            bytes = rest;
        }
    }

    /// Takes bytes into the ring that were put behind the last one.
    #[inline(always)]
    pub(crate) fn grow(&mut self, count: usize) {
        self.length += count.min(self.room()) as u32;
    }

    /// Copies the bytes from an offset on.
    #[inline(always)]
    pub(crate) fn copy(&self, offset: usize, into: &mut [u8]) {
        let at = self.start as usize + offset;
        match self.first.get(at..at + into.len()) {
            Some(bytes) => into.copy_from_slice(bytes),
            None => self.copy_in_parts(at, into),
        }
    }

    #[inline(never)]
    fn copy_in_parts(&self, mut at: usize, mut into: &mut [u8]) {
        while !into.is_empty() {
            let rest = match at.checked_sub(self.first.len()) {
                None => &self.first[at..],
                Some(behind) => &self.more[behind / BLOCK][behind % BLOCK..],
            };
            let length = rest.len().min(into.len());
            let (part, others) = into.split_at_mut(length);
            part.copy_from_slice(&rest[..length]);
            at += length;
            into = others;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Adds memory for so many bytes; looks at each step.
    fn make_room(ring: &mut Ring, bytes: usize) {
        let mut memory = ring.memory();
        assert!(ring.make_room(bytes, usize::MAX, |step, after| {
            assert!(memory + step == after && step <= BLOCK + LISTED * 24);
            memory = after;
            true
        }));
        assert!(ring.memory() == memory && ring.room() >= bytes.min(ring.free()));
        let is_full = ring.room() == ring.free();
        let room = ring.room();
        assert!(ring.make_room(usize::MAX, usize::MAX, |_, _| false) == (ring.room() == ring.free()));
        assert!(!is_full || ring.room() == room);
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn a_ring_is_a_queue(
            capacity in prop_oneof![1usize..40, 500usize..1600, 3000usize..20_000],
            steps in prop::collection::vec((0u8..7, 0usize..50, any::<u8>(), 0u8..3), 0..100),
        ) {
            let mut ring = Ring::new(capacity);
            let mut model = VecDeque::new();
            for (step, count, byte, factor) in steps {
                let count = count * [1, 20, 400][factor as usize];
                match step {
                    0 => {
                        make_room(&mut ring, count);
                        let room = ring.room();
                        let (taken, offered) = ring.fill(|room| {
                            let count = count.min(room.len());
                            room[..count].fill(byte);
                            count
                        });
                        prop_assert!(taken == count.min(offered) && (offered > 0) == (room > 0));
                        model.extend(core::iter::repeat_n(byte, taken));
                    }
                    1 => {
                        let (taken, offered) = ring.take(|bytes| {
                            assert!(bytes.iter().eq(model.iter().take(bytes.len())));
                            count
                        });
                        prop_assert!(offered > 0 || model.is_empty());
                        model.drain(..taken);
                    }
                    2 | 3 => {
                        // Bytes that come ahead of one that is missing, and the ring changes meanwhile.
                        let limit = ring.free();
                        if limit > 1 {
                            let count = count.min(limit - 1);
                            make_room(&mut ring, 1 + count);
                            let ahead: Vec<u8> = (0..count).map(|index| byte.wrapping_add(index as u8)).collect();
                            ring.put(ring.len() + 1, &ahead);
                            prop_assert_eq!(ring.len(), model.len());
                            if step == 3 {
                                let (taken, _) = ring.take(|bytes| bytes.len().min(count));
                                model.drain(..taken);
                                ring.shrink(ring.len() + 1 + count);
                                make_room(&mut ring, limit);
                            }
                            ring.put(ring.len(), &[!byte]);
                            ring.grow(1 + count);
                            model.push_back(!byte);
                            model.extend(ahead);
                        }
                    }
                    4 => {
                        let mut seen = Vec::new();
                        let skip = usize::from(byte) * 10;
                        ring.look(skip, count, |part| {
                            seen.extend_from_slice(part);
                            seen.len() < 3000
                        });
                        prop_assert!(seen.len() >= count.min(model.len().saturating_sub(skip)).min(3000));
                        prop_assert!(seen.iter().eq(model.iter().skip(skip).take(seen.len())));
                        let offset = count.min(model.len());
                        let mut copy = std::vec![0; model.len() - offset];
                        ring.copy(offset, &mut copy);
                        prop_assert!(copy.iter().eq(model.iter().skip(offset)));
                    }
                    5 => {
                        let before = ring.memory();
                        ring.shrink(0);
                        prop_assert!(ring.memory() <= before && (ring.memory() < before || before < 2 * BLOCK + 200
                            || !model.is_empty()));
                    }
                    _ => ring.rewind(),
                }
                prop_assert_eq!((ring.len(), ring.free()), (model.len(), capacity - model.len()));
                prop_assert!(ring.memory() <= capacity + 2 * BLOCK + 24 * (capacity / BLOCK + 2 * LISTED));
            }
            while ring.memory() > 0 {
                ring.take(<[u8]>::len);
                ring.shrink(0);
            }
        }
    }

    /// A stream that is read at once needs two blocks at most, however much it carries.
    #[test]
    fn consumed_blocks_are_used_again() {
        let mut ring = Ring::new(1 << 20);
        for _ in 0..1000 {
            make_room(&mut ring, 3000);
            let (mut left, mut written) = (3000, 0);
            while left > 0 {
                written = ring.fill(|room| room.len().min(left)).0;
                left -= written;
            }
            assert!(written > 0);
            while ring.len() > 100 {
                ring.take(|bytes| bytes.len().min(1500));
            }
        }
        assert!(ring.memory() <= 3 * BLOCK + LISTED * 24, "{}", ring.memory());
    }
}
