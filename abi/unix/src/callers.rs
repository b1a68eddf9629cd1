//! The line with which a program that dies says where it was: candidates for return addresses on its stack.
//!
//! Programs have no frame pointers, and a program that is dying cannot read its own unwind tables. So the kernel, or
//! the program's panic handler, prints every word near the stack pointer that is an address behind a call instruction,
//! with its distance from the stack pointer, and the host finds the true callers among them with the tables in the
//! program's file:
//!
//! ```text
//! callers in hello: 0x136b4 0x130b0 0x18:0x13000 0x48:0x12000
//! ```
//!
//! The first address is the program counter, the second the return address in its register (0 if it is not known).
//! Addresses are those of the file, however far the program was moved.

use core::fmt;
use core::ops::Range;

/// Number of bytes above the stack pointer that are searched.
pub const SEARCHED: usize = 8192;
/// Largest number of candidates in a line.
pub const MAXIMUM: usize = 40;

const BEFORE_PROGRAM: &str = "callers in ";

/// Returns whether an instruction that ends these four bytes is a call: `jal` or `jalr` with the link register, or
/// `c.jalr`. (`c.jal` exists with 32-bit registers only.)
#[must_use]
pub fn is_call(before: [u8; 4]) -> bool {
    let long = u32::from_le_bytes(before);
    let short = u16::from_le_bytes([before[2], before[3]]);
    matches!(long & 0xfff, 0xef | 0xe7) || (short & 0xf07f == 0x9002 && short & 0xf80 != 0)
}

/// Returns whether a word can be a return address into this code: a call ends before it. `read` gives the four bytes at
/// an address of the code, if it can.
pub fn is_return_address(word: u64, code: &Range<u64>, read: impl FnOnce(u64) -> Option<[u8; 4]>) -> bool {
    // A call is not the first instruction, nor the last.
    code.contains(&word) && word - code.start >= 4 && read(word - 4).is_some_and(is_call)
}

/// Writes the line's text, without an end of the line.
///
/// # Errors
///
/// Those of the writer.
pub fn write(
    writer: &mut dyn fmt::Write,
    program: &str,
    pc: u64,
    ra: u64,
    candidates: &mut dyn Iterator<Item = (usize, u64)>,
) -> fmt::Result {
    write!(writer, "{BEFORE_PROGRAM}{program}: {pc:#x} {ra:#x}")?;
    for (offset, address) in candidates.take(MAXIMUM) {
        write!(writer, " {offset:#x}:{address:#x}")?;
    }
    Ok(())
}

/// A line, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Callers<'a> {
    /// The first bytes of the program's name.
    pub program: &'a str,
    /// The program counter.
    pub pc: u64,
    /// The return address in its register; 0 if it is not known.
    pub ra: u64,
    candidates: &'a str,
}

impl<'a> Callers<'a> {
    /// Finds the text anywhere in a line.
    #[must_use]
    pub fn parse(line: &'a str) -> Option<Callers<'a>> {
        let (_, rest) = line.split_once(BEFORE_PROGRAM)?;
        let (program, rest) = rest.split_once(": ")?;
        let (pc, rest) = rest.trim_end().split_once(' ')?;
        let (ra, candidates) = rest.split_once(' ').unwrap_or((rest, ""));
        Some(Callers { program, pc: number(pc)?, ra: number(ra)?, candidates })
    }

    /// Returns the candidates: distance from the stack pointer in bytes, below [`SEARCHED`], and address. Any program
    /// can print such a line, so others are left out.
    pub fn candidates(&self) -> impl Iterator<Item = (u64, u64)> + 'a {
        let pairs = self.candidates.split(' ').filter_map(|pair| {
            let (offset, address) = pair.split_once(':')?;
            Some((number(offset)?, number(address)?))
        });
        pairs.filter(|(offset, _)| *offset < SEARCHED as u64).take(MAXIMUM)
    }
}

fn number(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::String;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn calls_are_told_from_other_instructions() {
        let jal_ra = 0x0080_00efu32;
        let jalr_ra_t1 = 0x0003_00e7u32;
        let jal_zero = 0x0080_006fu32;
        let ret = 0x0000_8067u32;
        assert!(is_call(jal_ra.to_le_bytes()) && is_call(jalr_ra_t1.to_le_bytes()));
        assert!(!is_call(jal_zero.to_le_bytes()) && !is_call(ret.to_le_bytes()));
        // c.jalr a5; c.ebreak; c.jr ra; c.add a0, a0, a1
        assert!(is_call([0, 0, 0x82, 0x97]));
        for other in [[0, 0, 0x02, 0x90], [0, 0, 0x82, 0x80], [0, 0, 0x2e, 0x95], [0; 4]] {
            assert!(!is_call(other), "{other:x?}");
        }
    }

    #[test]
    fn return_addresses_are_in_the_code_behind_a_call() {
        let call = |_| Some([0xef, 0, 0x80, 0]);
        let code = 0x1000..0x2000;
        for address in [0x1004, 0x1ffe] {
            assert!(is_return_address(address, &code, call), "{address:#x}");
        }
        for address in [0, 0xfff, 0x1000, 0x1003, 0x2000, u64::MAX] {
            assert!(!is_return_address(address, &code, call), "{address:#x}");
        }
        assert!(!is_return_address(0x1004, &(0..0), call));
        assert!(!is_return_address(0x1004, &code, |_| None));
        assert!(!is_return_address(0x1004, &code, |_| Some([0; 4])));
        assert!(is_return_address(0x1008, &code, |at| (at == 0x1004).then_some([0xef, 0, 0x80, 0])));
    }

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let mut line = String::from("[3] ");
        write(&mut line, "a b", 0x10, 0, &mut [(8, 0x20), (0x18, 0x30)].into_iter()).unwrap();
        assert_eq!(line, "[3] callers in a b: 0x10 0x0 0x8:0x20 0x18:0x30");
        let callers = Callers::parse(&line).unwrap();
        assert_eq!((callers.program, callers.pc, callers.ra), ("a b", 0x10, 0));
        assert_eq!(callers.candidates().collect::<Vec<_>>(), [(8, 0x20), (0x18, 0x30)]);

        let mut line = String::new();
        write(&mut line, "x", 1, 2, &mut (0..1000).map(|index| (index, 7))).unwrap();
        assert_eq!(Callers::parse(&line).unwrap().candidates().count(), MAXIMUM);
        assert_eq!(Callers::parse("callers in x: 0x1 0x2").unwrap().candidates().count(), 0);
    }

    #[test]
    fn other_lines_are_not_taken() {
        for line in ["", "callers in", "callers in x", "callers in x: ", "callers in x: 1 2", "callers in x: 0x1 0xg"] {
            assert_eq!(Callers::parse(line), None, "{line}");
        }
        let noise = Callers::parse("callers in x: 0x1 0x2 0x3 4:5 0x6:0x7 0xffffffffffffffff:0x8").unwrap();
        assert_eq!(noise.candidates().collect::<Vec<_>>(), [(6, 7)]);
    }
}
