//! Backtraces of programs that died: from the line `callers in PROGRAM: ...` and the program's file to functions, files
//! and lines.
//!
//! The line has the words of the stack that could be return addresses ([`abi_unix::callers`]). The tables for unwinding
//! in the program's file tell how large each function's part of the stack is, and where in it the return address lies,
//! so the true ones are found among them. Functions of the compiler's own libraries have no tables; from them on the
//! next candidate is taken.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use abi_unix::callers::Callers;
use addr2line::gimli::{
    BaseAddresses, CfaRule, EhFrame, EndianSlice, LittleEndian, RegisterRule, RiscV, UnwindContext, UnwindSection,
};
use anyhow::{Context, Result};
use object::{Object, ObjectSection};

use crate::symbols::{Symbols, annotate_report};

/// Largest number of callers in a backtrace.
const MAXIMUM_DEPTH: usize = 64;

/// The functions of the runtime that note an await point.
const NOTES: [&str; 2] = ["cops::observing::note_wait", "coroutine::frame::observed_vtable::clone"];

/// A program's file.
pub struct SymbolisedProgram {
    symbols: Symbols,
    /// Contents and address of the section with the tables; empty if the file has none.
    tables: Vec<u8>,
    tables_address: u64,
}

/// The position of a function relative to its caller's.
struct Frame {
    /// Size of the function's part of the stack at the moment.
    size: u64,
    /// Distance of the return address from the part's upper end; `None` while it is in its register.
    return_address: Option<i64>,
}

impl SymbolisedProgram {
    /// Reads a program's file.
    ///
    /// # Errors
    ///
    /// It cannot be read or is not an ELF file.
    pub fn load(elf: &Path) -> Result<SymbolisedProgram> {
        let symbols = Symbols::load(elf)?;
        let content = std::fs::read(elf).with_context(|| format!("cannot read {}", elf.display()))?;
        let file = object::File::parse(&*content)?;
        let section = file.section_by_name(".eh_frame");
        let tables = section.as_ref().and_then(|section| section.data().ok()).unwrap_or_default().to_vec();
        Ok(SymbolisedProgram { symbols, tables, tables_address: section.map_or(0, |section| section.address()) })
    }

    fn frame(&self, pc: u64) -> Option<Frame> {
        let tables = EhFrame::new(&self.tables, LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame(self.tables_address).set_text(0);
        let mut context = UnwindContext::new();
        let find = EhFrame::<EndianSlice<'_, LittleEndian>>::cie_from_offset;
        let row = tables.unwind_info_for_address(&bases, &mut context, pc, find).ok()?;
        let &CfaRule::RegisterAndOffset { register: RiscV::SP, offset } = row.cfa() else { return None };
        let size = u32::try_from(offset).ok()?.into();
        let return_address = match row.register(RiscV::RA) {
            Some(RegisterRule::Offset(offset)) => Some(offset),
            None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => None,
            Some(_) => return None,
        };
        Some(Frame { size, return_address })
    }

    /// Returns whether an address of the file is one of code.
    pub fn is_code(&self, address: u64) -> bool {
        self.symbols.is_code(address)
    }

    /// Returns the functions at an address of the file, innermost first.
    pub fn functions_at(&self, address: u64) -> Vec<String> {
        self.symbols.functions_at(address)
    }

    /// Returns the addresses of the program counter and the calls that led there, innermost first.
    fn unwind(&self, callers: &Callers<'_>) -> Vec<u64> {
        self.callers(callers.pc, callers.ra, &callers.candidates().collect::<Vec<_>>())
    }

    /// Returns the program counter and the addresses of the calls that led there, innermost first. The candidates are
    /// words of the stack that could be return addresses, by their distance from the stack pointer.
    pub fn callers(&self, pc: u64, ra: u64, candidates: &[(u64, u64)]) -> Vec<u64> {
        let mut result = vec![pc];
        // The stack pointer's distance from its value in the line.
        let mut stack = 0;
        while result.len() < MAXIMUM_DEPTH {
            let innermost = result.len() == 1;
            let pc = result[result.len() - 1];
            let frame = self.frame(pc);
            let next = match &frame {
                Some(Frame { size, return_address: Some(distance) }) => {
                    let at = (stack + size).wrapping_add_signed(*distance);
                    candidates.iter().find(|(offset, _)| *offset == at).map(|&(_, address)| (stack + size, address))
                }
                Some(Frame { size, return_address: None }) if innermost && ra != 0 => Some((stack + size, ra)),
                // The outermost function has no return address.
                Some(Frame { return_address: None, .. }) if !innermost => None,
                // After a jump to nowhere, the return address tells its origin.
                None if innermost && ra != 0 && (self.tables.is_empty() || self.frame(ra).is_some()) => {
                    Some((stack, ra))
                }
                _ => candidates
                    .iter()
                    .find(|(offset, _)| *offset >= stack)
                    .map(|&(offset, address)| (offset + 8, address)),
            };
            let Some((above, address)) = next else { break };
            stack = above;
            // A return address lies behind the call, and perhaps behind the function.
            result.push(address.wrapping_sub(1));
        }
        result
    }

    /// Returns the backtrace for a line of this program, whichever name the line gives it; nothing for other lines.
    pub fn explain(&self, line: &str) -> Vec<String> {
        Callers::parse(line).map_or_else(Vec::new, |callers| self.backtrace(&callers))
    }

    /// Returns the lines of the backtrace.
    fn backtrace(&self, callers: &Callers<'_>) -> Vec<String> {
        // The way from an await point to the code that notes it is of no interest.
        let is_note = |address: &u64| {
            let functions = self.functions_at(*address);
            functions.last().is_some_and(|name| NOTES.iter().any(|note| name.contains(note)))
        };
        self.report(self.unwind(callers).into_iter().skip_while(is_note))
    }

    /// Returns the lines of a backtrace of these addresses of the file.
    pub fn report(&self, addresses: impl Iterator<Item = u64>) -> Vec<String> {
        let lines: Vec<_> =
            addresses.enumerate().map(|(number, address)| format!("  #{number} {address:#x}")).collect();
        annotate_report(&self.symbols, &lines)
    }
}

/// The programs of an archive, whose files are read when one dies.
#[derive(Default)]
pub struct Programs {
    files: Vec<(String, PathBuf)>,
    read: HashMap<PathBuf, Option<SymbolisedProgram>>,
}

impl Programs {
    /// Knows these programs by their names.
    pub fn new(files: Vec<(String, PathBuf)>) -> Programs {
        Programs { files, read: HashMap::new() }
    }

    /// Returns the backtrace for a line of a program that died; nothing for other lines and unknown programs.
    pub fn explain(&mut self, line: &str) -> Vec<String> {
        let Some(callers) = Callers::parse(line) else { return Vec::new() };
        // The line may have only the first bytes of a long name.
        let is =
            |name: &str| name == callers.program || callers.program.len() >= 15 && name.starts_with(callers.program);
        let Some((_, file)) = self.files.iter().find(|(name, _)| is(name)) else { return Vec::new() };
        let program = self.read.entry(file.clone()).or_insert_with(|| SymbolisedProgram::load(file).ok());
        program.as_ref().map_or_else(Vec::new, |program| program.backtrace(&callers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This test program as a program whose tables are ignored: each next candidate is a caller.
    fn without_tables() -> SymbolisedProgram {
        let symbols = Symbols::load(&std::env::current_exe().unwrap()).unwrap();
        SymbolisedProgram { symbols, tables: Vec::new(), tables_address: 0 }
    }

    #[test]
    fn candidates_are_callers_where_there_are_no_tables() {
        let nowhere = 0xffff_ffff_0000_0000u64;
        let line = format!("[1] callers in x: {nowhere:#x} 0x40 0x8:0x50 0x10:0x60");
        assert_eq!(without_tables().unwind(&Callers::parse(&line).unwrap()), [nowhere, 0x3f, 0x4f, 0x5f]);
    }

    #[test]
    fn a_program_that_makes_up_the_line_gets_a_backtrace_of_limited_length() {
        let many: String = (0..1000).map(|index| format!(" {:#x}:0x50", index * 8)).collect();
        let line = format!("callers in x: 0x10 0x20{many}");
        let depth = without_tables().unwind(&Callers::parse(&line).unwrap()).len();
        assert!((2..=MAXIMUM_DEPTH).contains(&depth), "{depth}");
        let end = u64::MAX;
        for line in [
            format!("callers in x: {end:#x} {end:#x} {end:#x}:0x5"),
            format!("callers in x: 0x1 0x2 {end:#x}:{end:#x} 0x1ff8:{end:#x}"),
            "callers in x: 0x0 0x0 0x0:0x0 0x8:0x0".into(),
        ] {
            assert!(!without_tables().explain(&line).is_empty());
        }
    }

    #[test]
    fn lines_of_unknown_programs_are_left_alone() {
        let mut programs = Programs::new(vec![("known".into(), "/nowhere".into())]);
        for line in ["", "hello", "[1] callers in other: 0x1 0x2", "[1] callers in known: 0x1 0x2"] {
            assert!(programs.explain(line).is_empty(), "{line}");
        }
    }
}
