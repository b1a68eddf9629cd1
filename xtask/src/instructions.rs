//! A look at each instruction of a kernel: none may use the floating-point unit, whose registers may hold a program's
//! contents while the kernel runs. Two functions save and load them.

use anyhow::{Context as _, Result, bail};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SectionKind};

/// The functions that may use the unit.
const ALLOWED: [&str; 2] = ["hal_save_floating_point", "hal_load_floating_point"];

/// Bytes of the header of a kernel's image, and its second magic number with its offset (Linux's documentation,
/// arch/riscv/boot-image-header.rst).
const HEADER: usize = 64;
const HEADER_MAGIC: (usize, &[u8]) = (56, b"RSC\x05");

/// Checks a kernel's ELF file.
///
/// # Errors
///
/// An instruction uses the unit; the message has its function.
pub fn check(kernel: &[u8]) -> Result<()> {
    let file = object::File::parse(kernel).context("the kernel is no ELF file")?;
    let mut symbols: Vec<_> = file.symbols().filter(|symbol| symbol.is_definition()).collect();
    symbols.retain(|symbol| symbol.name().is_ok_and(|name| !name.is_empty() && !name.starts_with(['.', '$'])));
    symbols.sort_by_key(|symbol| symbol.address());
    // The scheduler's image has a section of its own in a kernel, with tables in it, and is checked by itself.
    let is_code = |section: &object::Section<'_, '_>| {
        section.kind() == SectionKind::Text && section.name().is_ok_and(|name| name != ".vdso")
    };
    for section in file.sections().filter(is_code) {
        let code = section.data()?;
        // The header by which boot loaders know a kernel is no code.
        let mut offset =
            if code.get(HEADER_MAGIC.0..).is_some_and(|rest| rest.starts_with(HEADER_MAGIC.1)) { HEADER } else { 0 };
        while let Some(bits) = instruction(code, offset) {
            let address = section.address() + offset as u64;
            if uses_unit(bits) {
                let before = symbols.partition_point(|symbol| symbol.address() <= address);
                let name = before.checked_sub(1).and_then(|place| symbols[place].name().ok()).unwrap_or("?");
                if !ALLOWED.contains(&name) {
                    bail!("the instruction {bits:#x} at {address:#x}, in {name}, uses the floating-point unit");
                }
            }
            offset += length(bits);
        }
    }
    Ok(())
}

/// Returns the instruction at an offset; the upper half is 0 for a short one.
fn instruction(code: &[u8], offset: usize) -> Option<u32> {
    let half = |offset: usize| Some(u32::from(u16::from_le_bytes(*code.get(offset..)?.first_chunk()?)));
    let low = half(offset)?;
    if length(low) == 2 { Some(low) } else { Some(low | half(offset + 2)? << 16) }
}

fn length(bits: u32) -> usize {
    if bits & 3 == 3 { 4 } else { 2 }
}

/// Whether an instruction needs the unit: loads and stores of its registers, its operations, its control registers
/// (Unprivileged architecture, "RV32/64G Instruction Set Listings" and "RVC Instruction Set Listings").
fn uses_unit(bits: u32) -> bool {
    match (bits & 3, bits & 0x7f) {
        (0 | 2, _) => matches!(bits >> 13 & 7, 1 | 5),
        (1, _) => false,
        // Loads and stores of these kinds are also those of vectors, which no kernel uses either.
        (_, 0x07 | 0x27 | 0x43 | 0x47 | 0x4b | 0x4f | 0x53) => true,
        (_, 0x73) => bits >> 12 & 7 != 0 && matches!(bits >> 20, 1..=3),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_of_the_unit_are_recognised() {
        // fld, fsd, fadd.d, fmadd.d, frcsr, fscsr, fsrm; c.fld, c.fsd, c.fldsp, c.fsdsp.
        let of_unit = [
            0x0005_3007,
            0x0005_3027,
            0x02b5_7553,
            0x62b5_7543,
            0x0030_22f3,
            0x0032_9073,
            0x0022_9073,
            0x2108,
            0xa108,
            0x2502,
            0xa502,
        ];
        // ld, sd, add, ecall, csrr sstatus, sret, lui; c.ld, c.sd, c.ldsp, c.sdsp, c.nop, c.j.
        let others = [
            0x0005_3503,
            0x00a5_3023,
            0x00b5_0533,
            0x0000_0073,
            0x1000_22f3,
            0x1020_0073,
            0x0000_0537,
            0x6108,
            0xe108,
            0x6502,
            0xe02a,
            0x0001,
            0xa001,
        ];
        assert!(of_unit.iter().all(|bits| uses_unit(*bits)), "{:x?}", of_unit.map(uses_unit));
        assert!(others.iter().all(|bits| !uses_unit(*bits)), "{:x?}", others.map(uses_unit));
    }

    #[test]
    fn short_and_long_instructions_are_told_apart() {
        let code = [0x01, 0x00, 0x73, 0x00, 0x00, 0x00, 0x13];
        assert_eq!(instruction(&code, 0), Some(1));
        assert_eq!(instruction(&code, 2), Some(0x73));
        // Half an instruction at the end is none.
        assert_eq!(instruction(&code, 6), None);
        assert!(check(b"nothing").is_err());
    }

    /// A file with one function that uses the unit, as the assembler of the `object` crate's writer makes it.
    #[test]
    fn a_function_that_uses_the_unit_is_named() {
        use object::write::{Object, Symbol, SymbolSection};
        use object::{Architecture, BinaryFormat, Endianness, SymbolFlags, SymbolKind, SymbolScope};
        let file = |function: &str| {
            let mut file = Object::new(BinaryFormat::Elf, Architecture::Riscv64, Endianness::Little);
            let text = file.section_id(object::write::StandardSection::Text);
            let mut add = |name: &str, code: &[u8]| {
                let value = file.append_section_data(text, code, 2);
                file.add_symbol(Symbol {
                    name: name.into(),
                    value,
                    size: code.len() as u64,
                    kind: SymbolKind::Text,
                    scope: SymbolScope::Linkage,
                    weak: false,
                    section: SymbolSection::Section(text),
                    flags: SymbolFlags::None,
                });
            };
            add("innocent", &0x0001_u16.to_le_bytes());
            add(function, &0x0005_3007_u32.to_le_bytes());
            file.write().unwrap()
        };
        let error = check(&file("kernel::guilty")).unwrap_err().to_string();
        assert!(error.contains("in kernel::guilty, uses the floating-point unit"), "{error}");
        check(&file("hal_load_floating_point")).unwrap();
    }
}
