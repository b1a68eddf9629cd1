//! Lookup of dynamic symbols in an image in which every file offset is also an offset in memory.
//!
//! Each number in the image is checked before it is used, so that a damaged image is an error; the caller guarantees
//! that the image is the scheduler's.

use crate::table::ImageError;

const HEADER_SIZE: usize = 64;
const PROGRAM_HEADER_SIZE: usize = 56;
const SYMBOL_SIZE: usize = 24;

const PT_DYNAMIC: u32 = 2;
const DT_NULL: u64 = 0;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;

/// The dynamic symbols of an image.
pub(crate) struct Symbols<'a> {
    image: &'a [u8],
    symbols: usize,
    strings: usize,
    count: usize,
}

impl<'a> Symbols<'a> {
    /// Finds the symbol table through the program headers. (Section headers may be missing.)
    pub fn parse(image: &'a [u8]) -> Result<Symbols<'a>, ImageError> {
        let parse = || {
            // Magic number, 64 bits, little-endian.
            if image.get(..6)? != b"\x7fELF\x02\x01" || image.len() < HEADER_SIZE {
                return None;
            }
            let headers = usize::try_from(word(image, 32)?).ok()?;
            let count = half(image, 56)?;
            let dynamic = (0..usize::from(count))
                .map(|index| headers.checked_add(index * PROGRAM_HEADER_SIZE))
                .find(|&at| at.and_then(|at| small(image, at)) == Some(PT_DYNAMIC))??;
            let mut at = usize::try_from(word(image, dynamic.checked_add(8)?)?).ok()?;
            let (mut hash, mut strings, mut symbols) = (None, None, None);
            loop {
                let value = usize::try_from(word(image, at.checked_add(8)?)?).ok()?;
                match word(image, at)? {
                    DT_NULL => break,
                    DT_HASH => hash = Some(value),
                    DT_STRTAB => strings = Some(value),
                    DT_SYMTAB => symbols = Some(value),
                    _ => {}
                }
                at = at.checked_add(16)?;
            }
            // The second word of the hash table is the number of symbols.
            let count = (small(image, hash?.checked_add(4)?)? as usize).min(image.len() / SYMBOL_SIZE);
            Some(Symbols { image, symbols: symbols?, strings: strings?, count })
        };
        parse().ok_or(ImageError::Damaged)
    }

    /// Returns the offset of a defined symbol.
    pub fn find(&self, name: &str) -> Option<usize> {
        (1..self.count).find_map(|index| {
            let at = self.symbols.checked_add(index.checked_mul(SYMBOL_SIZE)?)?;
            let string = self.strings.checked_add(small(self.image, at)? as usize)?;
            let section = half(self.image, at.checked_add(6)?)?;
            let bytes = self.image.get(string..)?;
            let matches = bytes.starts_with(name.as_bytes()) && bytes.get(name.len()) == Some(&0);
            if matches && section != 0 { usize::try_from(word(self.image, at.checked_add(8)?)?).ok() } else { None }
        })
    }
}

fn bytes<const N: usize>(image: &[u8], at: usize) -> Option<[u8; N]> {
    image.get(at..)?.get(..N)?.try_into().ok()
}

fn word(image: &[u8], at: usize) -> Option<u64> {
    bytes(image, at).map(u64::from_le_bytes)
}

fn small(image: &[u8], at: usize) -> Option<u32> {
    bytes(image, at).map(u32::from_le_bytes)
}

fn half(image: &[u8], at: usize) -> Option<u16> {
    bytes(image, at).map(u16::from_le_bytes)
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// Makes an image with the symbols `first` at 0x123 and `second` at 0x456, and `undefined`.
    fn image() -> Vec<u8> {
        let mut image = std::vec![0; 0x300];
        image[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let mut put = |at: usize, value: &[u8]| image[at..at + value.len()].copy_from_slice(value);
        put(32, &0x40u64.to_le_bytes());
        put(56, &2u16.to_le_bytes());
        put(0x40, &1u32.to_le_bytes());
        put(0x40 + 56, &2u32.to_le_bytes());
        put(0x40 + 56 + 8, &0x100u64.to_le_bytes());
        for (index, (tag, value)) in [(4u64, 0x180u64), (5, 0x200), (6, 0x280), (0, 0)].into_iter().enumerate() {
            put(0x100 + index * 16, &tag.to_le_bytes());
            put(0x100 + index * 16 + 8, &value.to_le_bytes());
        }
        put(0x184, &4u32.to_le_bytes());
        put(0x200, b"\0first\0second\0undefined\0");
        for (index, (name, section, value)) in
            [(1u32, 1u16, 0x123u64), (7, 1, 0x456), (14, 0, 0)].into_iter().enumerate()
        {
            let at = 0x280 + (index + 1) * 24;
            put(at, &name.to_le_bytes());
            put(at + 6, &section.to_le_bytes());
            put(at + 8, &value.to_le_bytes());
        }
        image
    }

    #[test]
    fn symbols_are_found_by_their_whole_name() {
        let image = image();
        let symbols = Symbols::parse(&image).ok().unwrap();
        assert_eq!(symbols.find("first"), Some(0x123));
        assert_eq!(symbols.find("second"), Some(0x456));
        assert_eq!(symbols.find("undefined"), None);
        assert_eq!(symbols.find("firs"), None);
        assert_eq!(symbols.find("third"), None);
    }

    #[test]
    fn the_dynamic_section_may_come_first() {
        let mut image = image();
        let (first, second) = image[0x40..0x40 + 2 * PROGRAM_HEADER_SIZE].split_at_mut(PROGRAM_HEADER_SIZE);
        first.swap_with_slice(second);
        assert_eq!(Symbols::parse(&image).ok().unwrap().find("second"), Some(0x456));
    }

    #[test]
    fn damaged_images_are_refused() {
        let is_damaged = |image: &[u8]| Symbols::parse(image).err() == Some(ImageError::Damaged);
        assert!(is_damaged(&[]));
        for at in 0..6 {
            let mut image = image();
            image[at] ^= 1;
            assert!(is_damaged(&image), "byte {at} is no matter");
        }
        // Each of the tables is needed, and so is the second program header, which leads to them.
        for entry in 0..3 {
            let mut image = image();
            image[0x100 + entry * 16] = 99;
            assert!(is_damaged(&image), "entry {entry} is no matter");
        }
        let mut image = image();
        image[0x40 + 56] = 1;
        assert!(is_damaged(&image));
    }

    #[test]
    fn more_symbols_than_fit_are_no_matter() {
        let mut image = image();
        image[0x184..0x188].copy_from_slice(&u32::MAX.to_le_bytes());
        let symbols = Symbols::parse(&image).ok().unwrap();
        assert!(symbols.count <= image.len() / SYMBOL_SIZE);
        assert_eq!(symbols.find("second"), Some(0x456));
        assert_eq!(symbols.find("third"), None);
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        #[test]
        fn damage_is_an_error_or_a_wrong_answer_but_never_a_panic(
            damage in proptest::collection::vec((0usize..0x300, any::<u8>()), 0..12),
            length in 0usize..0x301,
        ) {
            let mut image = image();
            for (at, value) in damage {
                image[at] = value;
            }
            image.truncate(length);
            if let Ok(symbols) = Symbols::parse(&image) {
                for name in ["first", "second", "undefined", ""] {
                    symbols.find(name);
                }
            }
        }
    }
}
