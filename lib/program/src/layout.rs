//! Random arrangement of a process's memory (ASLR).
//!
//! An error in a program that lets attackers write out of bounds is worth more to them if they know the addresses. So a
//! loader requests another arrangement from [`Layout::random`] each time:
//!
//! ```text
//! 4 GiB × 4 … 12      a program that can be moved                     23 bits
//! behind the program  up to 1 GiB, then the heap of `brk`             18 bits
//! a gigabyte between 144 and 256 GiB, in which lie                     almost 7 bits, and more for each:
//!   in the lower half   the top of the region of `mmap`, downwards   17 bits
//!   in the upper half   in any order: the first stack with its        17 bits, and 8 for the first word
//!                       guard, the pages shared with the kernel,      17 bits
//!                       the scheduler's image                         17 bits
//! ```
//!
//! The parts are in one gigabyte because page tables are memory, too: each further gigabyte costs every process a
//! frame, and they would lie apart by no more than Linux's 18 bits either way (Sv39 has 26 bits of pages for everything
//! together).
//!
//! The function is pure: it takes words and gives addresses, so that a test can have it make millions of arrangements.

use core::ops::Range;

use crate::image::{PAGE_SIZE, USER_ADDRESSES};

const GIGABYTE: u64 = 1 << 30;
/// Range in which position-independent programs begin.
const PROGRAMS: Range<u64> = 0x4_0000_0000..0xc_0000_0000;
/// Maximum distance from a program to the heap of `brk` behind it.
const BREAK_GAP: u64 = GIGABYTE;
/// Gigabytes of which one is chosen for all other parts.
const GIGABYTES: Range<u64> = 144..256;
/// Free room between the parts in the upper half of that gigabyte, and at its end.
const SPACING: u64 = 64 * 1024;

/// Bytes of the first stack; its pages are made when they are touched.
pub const STACK_SIZE: u64 = 8 << 20;
/// Bytes of the guard below it, which stay unmapped, so that an overflow faults (Linux's `stack_guard_gap`).
pub const STACK_GUARD: u64 = 1 << 20;

/// Sizes of the parts that the kernel shares with a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The shared pages.
    pub shared: u64,
    /// The scheduler's image, with the page in front of it.
    pub image: u64,
}

/// Addresses of all parts. All but [`stack_start`](Self::stack_start) are multiples of the page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ASLR")]
pub struct Layout {
    /// Base of a position-independent program.
    pub program: u64,
    /// Distance from the program's end to the heap of `brk`, in bytes.
    pub break_gap: u64,
    /// Top of the region in which `mmap` places mappings without a fixed address.
    pub mapping_top: u64,
    /// First address above the first stack.
    pub stack_top: u64,
    /// Address below which the first words of the stack go; at most a page below the top.
    pub stack_start: u64,
    /// The pages shared with the kernel.
    pub shared: u64,
    /// The scheduler's image, with the page in front of it.
    pub image: u64,
}

impl Layout {
    /// The arrangement of a machine without randomization.
    pub const FIXED: Layout = Layout {
        program: PROGRAMS.start,
        break_gap: 0,
        mapping_top: USER_ADDRESSES.end,
        stack_top: 0x3f_ff00_0000,
        stack_start: 0x3f_ff00_0000,
        shared: 0x3f_ff80_0000,
        image: 0x3f_ffe0_0000,
    };

    /// Makes an arrangement of random words.
    ///
    /// It needs about ten of them; more if parts would have met, which happens once in twenty times.
    pub fn random(sizes: Sizes, mut word: impl FnMut() -> u64) -> Layout {
        let mut pages_within = |length: u64| below(word(), length / PAGE_SIZE) * PAGE_SIZE;
        let program = PROGRAMS.start + pages_within(PROGRAMS.end - PROGRAMS.start);
        let break_gap = pages_within(BREAK_GAP);
        let gigabyte = GIGABYTES.start * GIGABYTE
            + pages_within((GIGABYTES.end - GIGABYTES.start) * GIGABYTE) / GIGABYTE * GIGABYTE;
        let half = GIGABYTE / 2;
        let mapping_top = gigabyte + pages_within(half);
        let lengths = [STACK_GUARD + STACK_SIZE, sizes.shared, sizes.image];
        // A bounded number of attempts: words that are not random must not keep a loader for ever.
        let starts = (0..32).find_map(|_| {
            let starts = lengths.map(|length| pages_within(half - SPACING - length.min(half - SPACING - PAGE_SIZE)));
            let meet = |one: usize, other: usize| {
                starts[one] < starts[other] + lengths[other] + SPACING
                    && starts[other] < starts[one] + lengths[one] + SPACING
            };
            (!meet(0, 1) && !meet(0, 2) && !meet(1, 2)).then_some(starts)
        });
        let one_behind_the_other = [0, lengths[0] + SPACING, lengths[0] + lengths[1] + 2 * SPACING];
        let starts = starts.unwrap_or(one_behind_the_other).map(|start| (gigabyte + half + start) & !(PAGE_SIZE - 1));
        let stack_top = starts[0] + lengths[0];
        let stack_start = stack_top - pages_within(256 * PAGE_SIZE) / PAGE_SIZE * 16;
        Layout { program, break_gap, mapping_top, stack_top, stack_start, shared: starts[1], image: starts[2] }
    }

    /// Returns the addresses of the first stack.
    pub fn stack(&self) -> Range<u64> {
        self.stack_top - STACK_SIZE..self.stack_top
    }

    /// Returns the guard region below the stack, which must stay unmapped.
    pub fn stack_guard(&self) -> Range<u64> {
        self.stack().start - STACK_GUARD..self.stack().start
    }

    /// Whether a program at these addresses, which its file fixes, overlaps none of the parts.
    pub fn leaves_room_for(&self, program: &Range<u64>, sizes: Sizes) -> bool {
        let parts = [
            self.stack_guard().start..self.stack_top,
            self.shared..self.shared + sizes.shared,
            self.image..self.image + sizes.image,
        ];
        parts.iter().all(|part| program.end <= part.start || part.end <= program.start)
    }
}

/// Returns a number below a limit. Limits are far below 2^32, so that the bias is negligible.
fn below(word: u64, limit: u64) -> u64 {
    ((u128::from(word) * u128::from(limit)) >> 64) as u64
}
