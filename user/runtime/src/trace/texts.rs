//! Numbers of texts: the table of those that may come again, and numbers for the others.

use core::fmt::Write;
use core::panic::Location;
use core::sync::atomic::{AtomicU32, Ordering};

use abi_unix::trace::MOST_TEXT_BYTES;
use alloc::string::String;
use alloc::vec::Vec;

/// Number of different names that are recorded once; others are recorded at each use.
pub const MOST_TEXTS: usize = 1024;

/// Numbers of texts that are in no table have this bit.
const PASSING: u32 = 1 << 31;

/// The texts with a number, which begin at 1.
pub(super) struct Texts {
    bytes: Vec<u8>,
    /// The end of each text in `bytes`.
    ends: Vec<u32>,
    /// Indices into `ends` in the order of the texts.
    order: Vec<u16>,
}

impl Texts {
    pub(super) const fn new() -> Texts {
        Texts { bytes: Vec::new(), ends: Vec::new(), order: Vec::new() }
    }

    fn at(&self, index: u16) -> &[u8] {
        let index = usize::from(index);
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start as usize..self.ends[index] as usize]
    }

    /// Returns the number of a text, and whether it is new: without memory, or in a full table, each is.
    pub(super) fn number(&mut self, text: &str) -> (u32, bool) {
        let place = match self.order.binary_search_by(|index| self.at(*index).cmp(text.as_bytes())) {
            Ok(place) => return (u32::from(self.order[place]) + 1, false),
            Err(place) => place,
        };
        let index = self.ends.len();
        let has_room = index < MOST_TEXTS
            && self.bytes.try_reserve(text.len()).is_ok()
            && self.ends.try_reserve(1).is_ok()
            && self.order.try_reserve(1).is_ok();
        if !has_room {
            return (passing(), true);
        }
        self.bytes.extend_from_slice(text.as_bytes());
        self.ends.push(self.bytes.len() as u32);
        self.order.insert(place, index as u16);
        (index as u32 + 1, true)
    }
}

/// Returns a number for a text that is in no table.
pub(super) fn passing() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) | PASSING
}

/// Returns the part of a text that is recorded.
pub(super) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MOST_TEXT_BYTES)]
}

/// Returns a place as `file:line`, of a long path the end.
pub(super) fn of_place(place: &Location<'_>) -> String {
    let mut line = String::new();
    // Formatting a number into a string does not fail.
    let _ = write!(line, ":{}", place.line());
    let file = place.file();
    let from = file.ceil_char_boundary(file.len().saturating_sub(MOST_TEXT_BYTES - line.len()));
    String::from(&file[from..]) + &line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_numbers_of_their_own() {
        let mut texts = Texts::new();
        for round in 0..2 {
            for (number, text) in [(1, "read"), (2, "accept"), (3, "write"), (4, "rea")] {
                assert_eq!(texts.number(text), (number, round == 0), "{text}");
            }
        }
    }

    #[test]
    fn a_full_table_gives_passing_numbers() {
        let mut texts = Texts::new();
        for number in 0..MOST_TEXTS {
            assert_eq!(texts.number(&alloc::format!("{number}")), (number as u32 + 1, true));
        }
        let (first, second) = (texts.number("more"), texts.number("more"));
        assert!(first.1 && second.1 && first.0 != second.0 && first.0 & second.0 & PASSING != 0);
        assert_eq!(texts.number("7"), (8, false));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        let long = "ä".repeat(MOST_TEXT_BYTES);
        assert_eq!(cut(&long).len(), MOST_TEXT_BYTES);
        assert_eq!(cut(&alloc::format!("a{long}")).len(), MOST_TEXT_BYTES - 1);
    }

    #[test]
    fn a_place_is_a_file_and_a_line() {
        let here = Location::caller();
        assert_eq!(of_place(here), alloc::format!("{}:{}", here.file(), here.line()));
        assert!(of_place(here).contains("texts.rs:"));
    }
}
