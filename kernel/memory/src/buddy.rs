//! The buddy system: free frames in blocks of powers of two.
//!
//! A free block of order `k` is `1 << k` frames, aligned to its size. Its buddy is the block that differs in bit `k` of
//! the frame number; two free buddies become one block of order `k + 1`. All lists are threaded through a record
//! of 16 bytes for each frame, outside the frames, so the allocator needs no memory of its own and never touches
//! a free frame.
//!
//! This is pure data: numbers in, numbers out. The records are atomics only so that they can be shared safely: the list
//! fields and the state belong to the holder of the buddy's lock (relaxed order suffices, the lock orders), and while a
//! frame is allocated its record belongs to its owner (ONE-OWNER), which may use it for lists and counts of its own.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Order of the largest block, which has `1 << MAX_ORDER` frames: 32 MiB.
pub(crate) const MAX_ORDER: usize = 13;
const ORDERS: usize = MAX_ORDER + 1;

/// End of a list.
pub(crate) const NONE: u32 = u32::MAX;

/// Record of one frame. See the module for the owners of the fields.
#[derive(Debug)]
pub(crate) struct Record {
    /// Next frame of the list that the frame is in.
    pub(crate) next: AtomicU32,
    /// Previous frame of the list.
    pub(crate) previous: AtomicU32,
    /// [`RESERVED`], [`ALLOCATED`], [`FREE`]` + order` at the head of a free block, or the owner's own mark.
    pub(crate) state: AtomicU32,
    /// Use of the owner: counts of a shared frame, of a page table, of a slab.
    pub(crate) count: AtomicU32,
}

/// Not memory, or never given to the allocator.
pub(crate) const RESERVED: u32 = 0;
/// Allocated, or inside a larger free block.
pub(crate) const ALLOCATED: u32 = 1;
/// Plus the order: the first frame of a free block.
pub(crate) const FREE: u32 = 0x100;
/// Plus the heap's number: a frame of a slab.
pub(crate) const SLAB: u32 = 0x200;

impl Record {
    pub(crate) const fn new() -> Self {
        Self {
            next: AtomicU32::new(NONE),
            previous: AtomicU32::new(NONE),
            state: AtomicU32::new(RESERVED),
            count: AtomicU32::new(0),
        }
    }
}

/// The free blocks among frames `base..base + records.len()`.
pub(crate) struct Buddy {
    records: &'static [Record],
    /// Number of the first frame that has a record.
    base: u32,
    /// First free block of each order.
    heads: [u32; ORDERS],
    /// Bit `k`: `heads[k]` is not `NONE`.
    nonempty: u32,
    free: usize,
}

impl Buddy {
    /// Makes a buddy system of reserved frames; [`Self::add`] gives it some.
    pub(crate) const fn new(records: &'static [Record], base: u32) -> Self {
        Self { records, base, heads: [NONE; ORDERS], nonempty: 0, free: 0 }
    }

    /// Returns the number of free frames.
    pub(crate) fn free_frames(&self) -> usize {
        self.free
    }

    /// Returns the record of a frame; `None` if the frame is not one of ours.
    fn record(&self, number: u32) -> Option<&'static Record> {
        self.records.get(number.wrapping_sub(self.base) as usize)
    }

    /// Returns the record of a frame that is certainly ours.
    fn known(&self, number: u32) -> &'static Record {
        &self.records[(number - self.base) as usize]
    }

    /// Frees frames that were reserved.
    pub(crate) fn add(&mut self, first: u32, frames: u32) {
        for number in first..first + frames {
            debug_assert_eq!(self.known(number).state.load(Relaxed), RESERVED);
            self.known(number).state.store(ALLOCATED, Relaxed);
        }
        self.free_run(first, frames);
    }

    /// Takes `1 << order` contiguous frames, aligned to their size.
    pub(crate) fn allocate(&mut self, order: usize) -> Option<u32> {
        if order > MAX_ORDER {
            return None;
        }
        // Bit set of the orders from `order` on that have a free block.
        let large_enough = self.nonempty >> order << order;
        if large_enough == 0 {
            return None;
        }
        let mut found = large_enough.trailing_zeros() as usize;
        let number = self.heads[found];
        self.unlink(number, found);
        // Free the upper halves until the block has the requested size.
        while found > order {
            found -= 1;
            self.link(number + (1 << found), found);
        }
        self.free -= 1 << order;
        Some(number)
    }

    /// Takes `frames` contiguous frames, aligned as a block that holds them all and `1 << order` frames would be. The
    /// rest of the block is freed at once.
    pub(crate) fn allocate_run(&mut self, frames: u32, order: usize) -> Option<u32> {
        let order = order.max(order_for(frames));
        let number = self.allocate(order)?;
        let surplus = (1u32 << order) - frames;
        if surplus > 0 {
            self.free_run(number + frames, surplus);
        }
        Some(number)
    }

    /// Takes up to `numbers.len()` single frames, neighbours where possible; returns their number.
    pub(crate) fn allocate_many(&mut self, numbers: &mut [u32]) -> usize {
        let mut filled = 0;
        while filled < numbers.len() {
            let wanted = numbers.len() - filled;
            // The largest block that is not too large, or half of the smallest one that is.
            let mut order = (wanted.ilog2() as usize).min(MAX_ORDER);
            let fitting = self.nonempty & ((2 << order) - 1);
            if self.nonempty == 0 {
                break;
            }
            if fitting != 0 {
                order = fitting.ilog2() as usize;
            }
            let Some(first) = self.allocate(order) else {
                break;
            };
            for number in first..first + (1 << order) {
                numbers[filled] = number;
                filled += 1;
            }
        }
        filled
    }

    /// Frees a block, and joins it with its buddy as long as that is free too.
    pub(crate) fn free(&mut self, mut number: u32, mut order: usize) {
        self.free += 1 << order;
        while order < MAX_ORDER {
            let buddy = number ^ (1 << order);
            match self.record(buddy) {
                Some(record) if record.state.load(Relaxed) == FREE + order as u32 => {
                    self.unlink(buddy, order);
                    // The joined block begins at the lower of the two.
                    number &= buddy;
                    order += 1;
                }
                _ => break,
            }
        }
        self.link(number, order);
    }

    /// Frees contiguous frames of any alignment.
    pub(crate) fn free_run(&mut self, mut first: u32, mut frames: u32) {
        while frames > 0 {
            let aligned = first.trailing_zeros() as usize;
            let order = aligned.min(frames.ilog2() as usize).min(MAX_ORDER);
            self.free(first, order);
            first += 1 << order;
            frames -= 1 << order;
        }
    }

    fn link(&mut self, number: u32, order: usize) {
        let head = self.heads[order];
        let record = self.known(number);
        record.state.store(FREE + order as u32, Relaxed);
        record.next.store(head, Relaxed);
        record.previous.store(NONE, Relaxed);
        if head != NONE {
            self.known(head).previous.store(number, Relaxed);
        }
        self.heads[order] = number;
        self.nonempty |= 1 << order;
    }

    fn unlink(&mut self, number: u32, order: usize) {
        let record = self.known(number);
        let next = record.next.load(Relaxed);
        let previous = record.previous.load(Relaxed);
        if next != NONE {
            self.known(next).previous.store(previous, Relaxed);
        }
        if previous != NONE {
            self.known(previous).next.store(next, Relaxed);
        } else {
            self.heads[order] = next;
            if next == NONE {
                self.nonempty &= !(1 << order);
            }
        }
        record.state.store(ALLOCATED, Relaxed);
    }
}

/// Returns the order of the smallest block that holds `frames` frames.
pub(crate) fn order_for(frames: u32) -> usize {
    frames.max(1).next_power_of_two().ilog2() as usize
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::boxed::Box;
    use std::collections::BTreeSet;
    use std::vec;
    use std::vec::Vec;

    fn records(count: usize) -> &'static [Record] {
        let records: Vec<Record> = (0..count).map(|_| Record::new()).collect();
        Box::leak(records.into_boxed_slice())
    }

    #[derive(Clone, Debug)]
    enum Step {
        Block(usize),
        Run(u32, usize),
        Many(usize),
        Free(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => (0..=MAX_ORDER).prop_map(Step::Block),
            2 => (property::edges(1..200u32, &[16, 64, 128]), 0..4usize)
                .prop_map(|(frames, order)| Step::Run(frames, order)),
            1 => property::edges(1..70usize, &[16, 32, 64]).prop_map(Step::Many),
            4 => any::<usize>().prop_map(Step::Free),
        ]
    }

    #[test]
    fn two_of_the_largest_blocks_are_not_joined() {
        let count = 2u32 << MAX_ORDER;
        let mut buddy = Buddy::new(records(count as usize), 0);
        buddy.free_run(0, count);
        let largest = [(MAX_ORDER, 0), (MAX_ORDER, 1 << MAX_ORDER)].into();
        assert_eq!(blocks(&buddy), largest);
        let (first, second) = (buddy.allocate(MAX_ORDER), buddy.allocate(MAX_ORDER));
        for number in [first, second] {
            buddy.free(number.expect("two blocks are free"), MAX_ORDER);
        }
        assert_eq!(blocks(&buddy), largest);
        assert_eq!(buddy.free, count as usize);
    }

    /// Returns the free blocks as (order, number), to compare two states of the allocator.
    fn blocks(buddy: &Buddy) -> BTreeSet<(usize, u32)> {
        let mut blocks = BTreeSet::new();
        for order in 0..ORDERS {
            let mut number = buddy.heads[order];
            assert_eq!(number != NONE, buddy.nonempty & (1 << order) != 0);
            while number != NONE {
                assert!(number.is_multiple_of(1 << order));
                assert!(blocks.insert((order, number)));
                number = buddy.known(number).next.load(Relaxed);
            }
        }
        blocks
    }

    /// Every history of five steps over eight frames that begin anywhere in a block: no frame is given twice, and in
    /// the end all are one whole again.
    #[test]
    fn every_short_history_gives_no_frame_twice() {
        const STEPS: usize = if cfg!(miri) { 2 } else { 5 };
        const FRAMES: u32 = 8;
        #[derive(Clone, Copy)]
        enum Move {
            Block(usize),
            Run(u32),
            Free(usize),
        }
        fn play(records: &'static [Record], base: u32, history: &[Move]) -> usize {
            // As the allocator finds them at boot: all reserved.
            records.iter().for_each(|record| record.state.store(RESERVED, Relaxed));
            let mut buddy = Buddy::new(records, base);
            buddy.add(base, FRAMES);
            let before = blocks(&buddy);
            let (mut owned, mut taken) = (Vec::<(u32, u32)>::new(), 0u32);
            for step in history {
                let got = match *step {
                    Move::Block(order) => buddy.allocate(order).map(|first| (first, 1 << order)),
                    Move::Run(frames) => buddy.allocate_run(frames, 0).map(|first| (first, frames)),
                    Move::Free(which) => {
                        let (first, frames) = owned.swap_remove(which);
                        buddy.free_run(first, frames);
                        taken &= !(((1 << frames) - 1) << (first - base));
                        None
                    }
                };
                if let Some((first, frames)) = got {
                    let bits = ((1u32 << frames) - 1) << (first - base);
                    assert!(first >= base && first + frames <= base + FRAMES && taken & bits == 0);
                    taken |= bits;
                    owned.push((first, frames));
                }
                assert_eq!(buddy.free_frames() as u32, FRAMES - taken.count_ones());
                if taken == 0 {
                    assert_eq!(blocks(&buddy), before);
                }
            }
            let left = owned.len();
            for (first, frames) in owned {
                buddy.free_run(first, frames);
            }
            assert_eq!(blocks(&buddy), before);
            left
        }
        fn go_on(records: &'static [Record], base: u32, history: &mut Vec<Move>) {
            let owned = play(records, base, history);
            if history.len() == STEPS {
                return;
            }
            let moves = [Move::Block(0), Move::Block(1), Move::Block(2), Move::Run(3)];
            for step in moves.into_iter().chain((0..owned).map(Move::Free)) {
                history.push(step);
                go_on(records, base, history);
                history.pop();
            }
        }
        for base in [0, 1, 6] {
            go_on(records(FRAMES as usize), base, &mut Vec::new());
        }
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn blocks_never_overlap_and_coalesce_back(
            base in property::edges(0..5000u32, &[512, 4096]),
            holes in prop::collection::vec(
                (property::edges(0..400u32, &[128]), property::edges(1..3000u32, &[64, 1024, 2048])),
                1..4,
            ),
            steps in prop::collection::vec(step(), 1..200),
        ) {
            let span: u32 = holes.iter().map(|(gap, frames)| gap + frames).sum();
            let mut buddy = Buddy::new(records(span as usize), base);
            let mut given = BTreeSet::new();
            let mut at = base;
            for (gap, frames) in holes {
                buddy.add(at + gap, frames);
                given.extend(at + gap..at + gap + frames);
                at += gap + frames;
            }
            let before = blocks(&buddy);
            let total = buddy.free_frames();
            prop_assert_eq!(total, given.len());

            let mut owned: Vec<(u32, u32)> = vec![];
            let mut taken = BTreeSet::new();
            for step in steps {
                let mut got = vec![];
                match step {
                    Step::Block(order) => {
                        if let Some(first) = buddy.allocate(order) {
                            prop_assert!(first.is_multiple_of(1 << order));
                            got.push((first, 1u32 << order));
                        }
                    }
                    Step::Run(frames, order) => {
                        if let Some(first) = buddy.allocate_run(frames, order) {
                            prop_assert!(first.is_multiple_of(1 << order));
                            got.push((first, frames));
                        }
                    }
                    Step::Many(count) => {
                        let mut numbers = vec![0; count];
                        let filled = buddy.allocate_many(&mut numbers);
                        prop_assert!(filled == count || buddy.free_frames() == 0);
                        got.extend(numbers[..filled].iter().map(|&number| (number, 1)));
                    }
                    Step::Free(which) if !owned.is_empty() => {
                        let (first, frames) = owned.swap_remove(which % owned.len());
                        buddy.free_run(first, frames);
                        for number in first..first + frames {
                            prop_assert!(taken.remove(&number));
                        }
                    }
                    Step::Free(_) => {}
                }
                for (first, frames) in got {
                    for number in first..first + frames {
                        prop_assert!(given.contains(&number), "was never given: {}", number);
                        prop_assert!(taken.insert(number), "taken twice: {}", number);
                    }
                    owned.push((first, frames));
                }
                prop_assert_eq!(buddy.free_frames(), total - taken.len());
            }
            for (first, frames) in owned {
                buddy.free_run(first, frames);
            }
            prop_assert_eq!(buddy.free_frames(), total);
            prop_assert_eq!(blocks(&buddy), before);
        }
    }
}
