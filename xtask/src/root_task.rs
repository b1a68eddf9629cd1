//! Conditions on a root task or a program from outside the tree, checked before the machine starts: the kernel would
//! report them too, but after a build and a boot.

use std::path::Path;

use anyhow::{Context, Result, bail};
use object::elf;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};

/// Addresses of programs end here (`seL4_UserTop`), and start behind the first page.
const ADDRESSES: std::ops::Range<u64> = 0x1000..0x3f_ffff_f000;

/// Checks the file of a root task.
///
/// # Errors
///
/// It cannot be read, or the kernel could not start it; the message has the reason.
pub fn check_file(file: &Path) -> Result<()> {
    let content = std::fs::read(file).with_context(|| format!("cannot read the root task {}", file.display()))?;
    check(&content).with_context(|| format!("{} is no root task", file.display()))
}

/// Checks that the Unix kernel could start the program of a file.
///
/// # Errors
///
/// It cannot be read, is no program for RISC-V, or needs an interpreter.
pub fn check_program(file: &Path) -> Result<()> {
    let content = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let file = parse(&content)?;
    let (endian, header) = (file.endian(), file.elf_header());
    if ![elf::ET_EXEC, elf::ET_DYN].contains(&header.e_type(endian)) {
        bail!("it is no executable file");
    }
    if file.elf_program_headers().iter().any(|segment| segment.p_type(endian) == elf::PT_INTERP) {
        bail!("it needs an interpreter and libraries of Linux: `cargo xtask linux run` has them");
    }
    Ok(())
}

/// Parses an ELF file of the right machine.
fn parse(content: &[u8]) -> Result<ElfFile64<'_, object::LittleEndian>> {
    match content {
        [0x7f, b'E', b'L', b'F', class, data, ..] => {
            if *class != 2 || *data != 1 {
                bail!("it is an ELF file of another machine: programs are for 64 bits, little endian");
            }
        }
        [] => bail!("it is empty"),
        _ => bail!("it is no ELF file"),
    }
    let file: ElfFile64<'_, object::LittleEndian> = ElfFile64::parse(content).context("it is damaged")?;
    if file.elf_header().e_machine(file.endian()) != elf::EM_RISCV {
        bail!("it is for another machine: the ELF header does not say RISC-V");
    }
    Ok(file)
}

fn check(content: &[u8]) -> Result<()> {
    let file = parse(content)?;
    let (endian, header) = (file.endian(), file.elf_header());
    if header.e_type(endian) != elf::ET_EXEC {
        bail!("it is no program that is linked at a fixed address");
    }
    let loads = file.elf_program_headers().iter().filter(|segment| segment.p_type(endian) == elf::PT_LOAD);
    let (mut entry_found, mut any) = (false, false);
    for load in loads {
        any = true;
        let (offset, in_file) = (load.p_offset(endian), load.p_filesz(endian));
        let (start, in_memory) = (load.p_vaddr(endian), load.p_memsz(endian));
        if in_file > in_memory || offset.checked_add(in_file).is_none_or(|end| end > content.len() as u64) {
            bail!("it is damaged: the segment at {start:#x} is not all in the file");
        }
        let Some(end) = start.checked_add(in_memory).filter(|end| start >= ADDRESSES.start && *end <= ADDRESSES.end)
        else {
            bail!("its segment at {start:#x} lies outside of a program's addresses");
        };
        entry_found |= (start..end).contains(&header.e_entry(endian));
    }
    if !any {
        bail!("it is damaged: it has no segment to load");
    }
    if !entry_found {
        bail!("it is damaged: its entry point {:#x} lies in no segment", header.e_entry(endian));
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Builds an ELF file with one segment of `content`, for a machine and of a type.
    pub fn elf(machine: u16, kind: u16, address: u64, entry: u64, content: &[u8]) -> Vec<u8> {
        let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut put = |bytes: &[u8]| file.extend_from_slice(bytes);
        put(&kind.to_le_bytes());
        put(&machine.to_le_bytes());
        put(&1_u32.to_le_bytes());
        put(&entry.to_le_bytes());
        put(&64_u64.to_le_bytes());
        put(&0_u64.to_le_bytes());
        put(&0_u32.to_le_bytes());
        for half in [64_u16, 56, 1, 64, 0, 0] {
            put(&half.to_le_bytes());
        }
        put(&1_u32.to_le_bytes());
        put(&7_u32.to_le_bytes());
        for word in [120, address, address, content.len() as u64, content.len() as u64, 4096] {
            put(&word.to_le_bytes());
        }
        put(content);
        file
    }

    fn complaint(content: &[u8]) -> String {
        check(content).map_or_else(|error| format!("{error:#}"), |()| "none".into())
    }

    #[test]
    fn a_root_task_is_accepted() {
        assert_eq!(complaint(&elf(243, 2, 0x10000, 0x10004, &[0; 64])), "none");
    }

    #[test]
    fn files_that_are_no_root_task_are_refused_with_the_reason() {
        let good = elf(243, 2, 0x10000, 0x10004, &[0; 64]);
        let mut narrow = good.clone();
        narrow[4] = 1;
        let mut without = good.clone();
        without[64] = 4;
        for (content, expected) in [
            (Vec::new(), "it is empty"),
            (b"#!/bin/sh\n".to_vec(), "it is no ELF file"),
            (narrow, "it is an ELF file of another machine"),
            (elf(62, 2, 0x10000, 0x10004, &[0; 64]), "it is for another machine"),
            (elf(243, 3, 0x10000, 0x10004, &[0; 64]), "fixed address"),
            (elf(243, 2, 0x10000, 0x20000, &[0; 64]), "entry point 0x20000 lies in no segment"),
            (elf(243, 2, 0, 4, &[0; 64]), "outside of a program's addresses"),
            (elf(243, 2, u64::MAX - 8, 4, &[0; 64]), "outside of a program's addresses"),
            (good[..good.len() - 1].to_vec(), "not all in the file"),
            (good[..100].to_vec(), "it is damaged"),
            (good[..20].to_vec(), "it is damaged"),
            (without, "no segment to load"),
        ] {
            assert!(complaint(&content).contains(expected), "{} is not {expected}", complaint(&content));
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let text = format!("{:#}", check_file(Path::new("/nowhere/root-task.elf")).unwrap_err());
        assert!(text.starts_with("cannot read the root task /nowhere/root-task.elf"), "{text}");
    }
}
