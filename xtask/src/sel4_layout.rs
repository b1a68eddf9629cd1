//! The microkernel in the form that seL4's own loader takes, so that its file can replace `kernel.elf` in an image of
//! seL4's build system.
//!
//! The loader places a kernel by its segments' addresses and maps it with pages of 2 MiB, which works only under
//! conditions that a linker script keeps or breaks without a message. They are checked here, where a violation can be
//! reported; in the machine it could not.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use object::elf;
use object::read::elf::{ElfFile64, ProgramHeader};

use crate::workspace::write_if_changed;

/// Size of the pages with which the loader maps the kernel.
const LARGE_PAGE: u64 = 2 << 20;

/// Address of the loader itself: the kernel has to end below, with the device tree and the root task behind it.
const LOADER: u64 = 0x8100_0000;

/// The range of virtual addresses that the loader uses for itself.
const IDENTITY: std::ops::Range<u64> = 0x8000_0000..0xc000_0000;

/// Writes the kernel beside itself under the name that seL4's build system uses, if its loader can load it.
///
/// # Errors
///
/// The loader could not load it, or the file cannot be written.
pub fn write(kernel: &Path) -> Result<PathBuf> {
    let content = std::fs::read(kernel).with_context(|| format!("cannot read {}", kernel.display()))?;
    check(&content).with_context(|| format!("seL4's loader cannot load {}", kernel.display()))?;
    let name = kernel.file_name().unwrap_or_default().to_string_lossy();
    let file = kernel.with_file_name(format!("{name}.sel4.elf"));
    write_if_changed(&file, &content)?;
    Ok(file)
}

fn check(content: &[u8]) -> Result<()> {
    let file: ElfFile64<'_, object::LittleEndian> = ElfFile64::parse(content).context("it is no 64-bit ELF file")?;
    let endian = file.endian();
    let loads = file.elf_program_headers().iter().filter(|segment| segment.p_type(endian) == elf::PT_LOAD);
    let mut offset = None;
    for load in loads {
        let (start, physical) = (load.p_vaddr(endian), load.p_paddr(endian));
        let difference = start.wrapping_sub(physical);
        if *offset.get_or_insert(difference) != difference {
            bail!("virtual and physical addresses of its segments differ by different amounts");
        }
        if !difference.is_multiple_of(LARGE_PAGE) {
            bail!(
                "the virtual address {start:#x} and the physical address {physical:#x} lie differently in pages of 2 MiB"
            );
        }
        if IDENTITY.contains(&start) {
            bail!("the virtual address {start:#x} lies where the loader maps itself");
        }
        if physical.checked_add(load.p_memsz(endian)).is_none_or(|end| end > LOADER) {
            bail!("its segment at {physical:#x} reaches into the loader at {LOADER:#x}");
        }
    }
    if offset.is_none() {
        bail!("it has no segment to load");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root_task::tests::elf;

    fn complaint(address: u64, physical: u64) -> String {
        let mut file = elf(243, 2, address, address, &[0; 64]);
        // The physical address follows the virtual one.
        file[88..96].copy_from_slice(&physical.to_le_bytes());
        check(&file).map_or_else(|error| format!("{error:#}"), |()| "none".into())
    }

    #[test]
    fn the_loaders_conditions_are_checked() {
        assert_eq!(complaint(0xffff_ffff_8020_0000, 0x8020_0000), "none");
        for (address, physical, expected) in [
            (0xffff_ffff_8020_1000, 0x8020_0000, "lie differently in pages of 2 MiB"),
            (0x8020_0000, 0x8020_0000, "where the loader maps itself"),
            (0xffff_ffff_8100_0000, 0x8100_0000, "reaches into the loader"),
        ] {
            let found = complaint(address, physical);
            assert!(found.contains(expected), "{found}");
        }
        assert!(check(b"nothing").is_err());
    }
}
