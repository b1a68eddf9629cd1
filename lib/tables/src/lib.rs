//! Lists, hash tables and ordered tables that grow and shrink a little at a time.
//!
//! # The problem
//! A vector doubles when it is full, and copies its elements; a hash table enters all of them anew. On average that
//! costs nothing. In a kernel, code is not interrupted, and the one call that meets it keeps its hart for as long as
//! the process that filled the table likes.
//!
//! # The choice
//! No operation moves more than a segment's worth of elements, [`SEGMENT`] bytes, and no operation on one element
//! visits more than a few others:
//!
//! * [`Segments`] is a vector in pieces of equal size. Only the list of the pieces is copied when it grows or shrinks,
//!   three words for each piece.
//! * [`Queue`] has the same structure, with two ends.
//! * [`Table`] is a hash table by *linear hashing* (Litwin, 1980): it has as many chains as entries, and each insertion
//!   splits one chain in two, in turns. Entries lie dense in a [`Segments`], so that a table that empties gives its
//!   memory back a segment at a time.
//! * [`Ordered`] keeps values in the order of their numbers, in groups of neighbours. A group that is full becomes two,
//!   and two with few values become one; the list of the groups is searched by halves.
//!
//! Room is reserved first, which can fail; the insertion cannot, but for that into an [`Ordered`]. Only dropping a
//! large one at once takes long: an owner of a large one takes its elements out in steps.
//!
//! # Rejected
//! *Two tables, the old one and the new one, between which entries move*: the new one is large, and has to be made at
//! once. *The standard library's B-trees*: an insertion cannot report a lack of memory.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

mod ordered;
mod queue;
mod segments;
mod table;

pub use ordered::Ordered;
pub use queue::Queue;
pub use segments::Segments;
pub use table::Table;

/// Maximum bytes of a segment, unless eight elements need more.
pub const SEGMENT: usize = 2048;

/// Makes an empty segment with room for `elements` elements.
fn segment<T>(elements: usize) -> Result<Vec<T>, TryReserveError> {
    let mut segment = Vec::new();
    segment.try_reserve_exact(elements)?;
    Ok(segment)
}

/// Returns the number of elements in a segment, as a power of two.
const fn shift_for(size: usize) -> u32 {
    let fitting = SEGMENT / if size == 0 { 1 } else { size };
    if fitting < 8 { 3 } else { fitting.ilog2() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_has_as_many_elements_as_fit_but_eight_at_least() {
        let elements = |size| 1usize << shift_for(size);
        assert_eq!([0, 1, 2].map(elements), [2048, 2048, 1024]);
        // 2048 / 24 is 85, of which 64 is the power of two.
        assert_eq!([24, 32, 33, 128, 129, 255, 256].map(elements), [64, 64, 32, 16, 8, 8, 8]);
        assert_eq!([257, 2048, 100_000].map(elements), [8, 8, 8]);
    }
}
