//! Conditions on the vDSO image, which is mapped unchanged into every address space.
//!
//! The linker cannot enforce them, or only in part; the documentation of the crate `vdso` gives the reasons. A build
//! that violates one of them fails here and not in the machine.

use anyhow::{Context, Result, bail};
use object::elf;
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader, Sym};

/// Largest number of bytes of the image.
const MAXIMUM_BYTES: u64 = 16 << 10;

/// Functions that C libraries look for.
pub const NAMES_OF_LINUX: [&str; 4] =
    ["__vdso_rt_sigreturn", "__vdso_clock_gettime", "__vdso_clock_getres", "__vdso_gettimeofday"];

/// Entries of the dynamic section that mean work for a loader, which the system does not have.
const FORBIDDEN: [(elf::DynamicTag, &str); 6] = [
    (elf::DT_RELA, "DT_RELA"),
    (elf::DT_REL, "DT_REL"),
    (elf::DT_JMPREL, "DT_JMPREL"),
    (elf::DT_RELR, "DT_RELR"),
    (elf::DT_TEXTREL, "DT_TEXTREL"),
    (elf::DT_NEEDED, "DT_NEEDED"),
];

/// Checks an image whose exported functions are to be `names`.
///
/// # Errors
///
/// All violations.
pub fn check(image: &[u8], names: &[&str]) -> Result<()> {
    let file: ElfFile64<'_, object::LittleEndian> = ElfFile64::parse(image).context("the vDSO image is no ELF file")?;
    let endian = file.endian();
    let mut problems = Vec::new();

    let header = file.elf_header();
    if header.e_type(endian) != elf::ET_DYN {
        problems.push("it is no shared object".to_string());
    }
    let segments = file.elf_program_headers();
    let loads: Vec<_> = segments.iter().filter(|segment| segment.p_type(endian) == elf::PT_LOAD).collect();
    match loads[..] {
        [load] => {
            if load.p_flags(endian) != elf::PF_R | elf::PF_X {
                problems.push(format!("its segment has the flags {:#x}, not read and execute", load.p_flags(endian)));
            }
            if load.p_offset(endian) != 0 || load.p_vaddr(endian) != 0 {
                problems.push("its segment does not begin at offset and address 0".into());
            }
            if load.p_filesz(endian) != load.p_memsz(endian) {
                problems.push("its segment has memory that is not in the file".into());
            }
            if load.p_memsz(endian) > MAXIMUM_BYTES {
                problems.push(format!("it takes {} bytes; {MAXIMUM_BYTES} are allowed", load.p_memsz(endian)));
            }
        }
        _ => problems.push(format!("it has {} segments to load, not one", loads.len())),
    }
    for segment in segments {
        for entry in segment.dynamic(endian, image).ok().flatten().unwrap_or_default() {
            let tag = entry.d_tag(endian);
            if let Some((_, name)) = FORBIDDEN.iter().find(|(forbidden, _)| *forbidden == tag) {
                problems.push(format!("its dynamic section has {name}"));
            }
        }
    }
    let symbols = file.elf_dynamic_symbol_table();
    let mut defined = Vec::new();
    // The first symbol is the null symbol.
    for symbol in symbols.iter().skip(1) {
        let name = String::from_utf8_lossy(symbols.symbol_name(endian, symbol).unwrap_or_default()).into_owned();
        if symbol.is_undefined(endian) {
            problems.push(format!("it needs the symbol `{name}` from elsewhere"));
        } else {
            defined.push(name);
        }
    }
    for name in names.iter().filter(|name| !defined.iter().any(|defined| defined == *name)) {
        problems.push(format!("it does not export `{name}`"));
    }
    if !problems.is_empty() {
        bail!("the vDSO image cannot be used: {}", problems.join("; "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_program_is_no_image_and_every_reason_is_given() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let text = check(&program, &["cops_run"]).unwrap_err().to_string();
        for reason in
            ["segments to load, not one", "DT_RELA", "DT_NEEDED", "from elsewhere", "does not export `cops_run`"]
        {
            assert!(text.contains(reason), "{reason}: {text}");
        }
    }

    #[test]
    fn files_that_are_not_elf_are_refused() {
        assert!(check(b"", &[]).is_err());
        assert!(check(&[0x7f; 100], &[]).is_err());
    }
}
