//! The file that EFI firmware starts: the loader of kernel/efi-loader as a PE file (Microsoft, "PE Format"), with a
//! kernel, an archive and boot words as further sections.
//!
//! The linker makes ELF files alone. The loader is linked at the addresses that its sections have in the PE file, as
//! offsets from its base, so that they are taken as they are; addresses in its tables are relocations of the ELF file,
//! and become those of the PE file.

use anyhow::{Context as _, Result, bail};
use object::elf::{self, PF_W, PT_LOAD};
use object::pe;
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _, Rela as _, SectionHeader as _};
use object::write::pe::{NtHeaders, SectionRange, Writer};

/// Name of the file in a bundle.
pub const FILE: &str = "cops.efi";

/// Units of addresses and of places in the file.
const SECTION_ALIGNMENT: u32 = 0x1000;
const FILE_ALIGNMENT: u32 = 0x200;

/// The loader as the linker has made it.
struct Loader {
    sections: Vec<Section>,
    entry: u32,
    /// Addresses of addresses.
    relocations: Vec<u32>,
}

/// A section of the file.
struct Section {
    name: &'static str,
    flags: pe::SectionFlags,
    /// Its address, if that was chosen before.
    address: Option<u32>,
    /// Its size in memory.
    size: u32,
    content: Vec<u8>,
}

impl Section {
    /// A section that is read and nothing else.
    fn data(name: &'static str, content: &[u8]) -> Result<Section> {
        let size = u32::try_from(content.len()).with_context(|| format!("{name} is larger than a PE file can be"))?;
        let flags = pe::IMAGE_SCN_CNT_INITIALIZED_DATA | pe::IMAGE_SCN_MEM_READ;
        Ok(Section { name, flags, address: None, size, content: content.to_vec() })
    }
}

/// Makes the file of the loader, a kernel's image, an archive and boot words.
///
/// # Errors
///
/// The loader is not as it should be, or a part is too large.
pub fn file(loader: &[u8], kernel: &[u8], archive: &[u8], words: &str) -> Result<Vec<u8>> {
    let mut loader = read(loader).context("the EFI loader")?;
    loader.sections.extend([
        Section::data(".linux", kernel)?,
        Section::data(".initrd", archive)?,
        Section::data(".cmdline", words.as_bytes())?,
    ]);
    write(&loader)
}

/// Takes the loader's segments and relocations out of its ELF file.
fn read(content: &[u8]) -> Result<Loader> {
    let file: ElfFile64<'_, object::LittleEndian> = ElfFile64::parse(content)?;
    let endian = file.endian();
    let mut sections = Vec::new();
    for segment in file.elf_program_headers().iter().filter(|segment| segment.p_type(endian) == PT_LOAD) {
        let is_data = segment.p_flags(endian).0 & PF_W.0 != 0;
        let (name, flags) = match is_data {
            false => (".text", pe::IMAGE_SCN_CNT_CODE | pe::IMAGE_SCN_MEM_EXECUTE | pe::IMAGE_SCN_MEM_READ),
            true => (".data", pe::IMAGE_SCN_CNT_INITIALIZED_DATA | pe::IMAGE_SCN_MEM_READ | pe::IMAGE_SCN_MEM_WRITE),
        };
        let content = segment.data(endian, content).ok().context("a segment lies outside of the file")?.to_vec();
        let address = Some(u32::try_from(segment.p_vaddr(endian))?);
        sections.push(Section { name, flags, address, size: u32::try_from(segment.p_memsz(endian))?, content });
    }
    let mut relocations = Vec::new();
    let table = file.elf_section_table();
    for section in table.iter() {
        let Some((entries, _)) = section.rela(endian, content)? else { continue };
        for entry in entries {
            if entry.r_type(endian, false) != elf::R_RISCV_RELATIVE {
                bail!("it has a relocation of the type {}", entry.r_type(endian, false).0);
            }
            let place = u32::try_from(entry.r_offset(endian))?;
            // The PE file's base is 0, so an address is its offset.
            set(&mut sections, place, entry.r_addend(endian) as u64)?;
            relocations.push(place);
        }
    }
    relocations.sort_unstable();
    Ok(Loader { sections, entry: u32::try_from(file.elf_header().e_entry(endian))?, relocations })
}

/// Writes a word at an address.
fn set(sections: &mut [Section], address: u32, word: u64) -> Result<()> {
    let place = sections.iter_mut().find_map(|section| {
        let offset = address.checked_sub(section.address?)? as usize;
        section.content.get_mut(offset..offset + 8)
    });
    place.context("a relocation lies outside of its segments")?.copy_from_slice(&word.to_le_bytes());
    Ok(())
}

fn write(loader: &Loader) -> Result<Vec<u8>> {
    let mut file = Vec::new();
    let mut writer = Writer::new(true, SECTION_ALIGNMENT, FILE_ALIGNMENT, &mut file);
    writer.reserve_dos_header();
    writer.reserve_nt_headers(pe::IMAGE_NUMBEROF_DIRECTORY_ENTRIES);
    writer.reserve_section_headers(u16::try_from(loader.sections.len() + 1)?);
    let mut ranges: Vec<SectionRange> = Vec::new();
    for section in &loader.sections {
        let mut name = [0; 8];
        name[..section.name.len()].copy_from_slice(section.name.as_bytes());
        let range = writer.reserve_section(name, section.flags, section.size, u32::try_from(section.content.len())?);
        if section.address.is_some_and(|address| address != range.virtual_address) {
            bail!("the section {} is at {:#x} in the PE file", section.name, range.virtual_address);
        }
        ranges.push(range);
    }
    for address in &loader.relocations {
        writer.add_reloc(*address, pe::IMAGE_REL_BASED_DIR64);
    }
    // One that is not needed is there too: a file without one could not be moved.
    if loader.relocations.is_empty() {
        writer.add_reloc(0, pe::IMAGE_REL_BASED_ABSOLUTE);
    }
    writer.reserve_reloc_section();

    writer.write_empty_dos_header()?;
    writer.write_nt_headers(NtHeaders {
        machine: pe::IMAGE_FILE_MACHINE_RISCV64,
        time_date_stamp: 0,
        characteristics: pe::IMAGE_FILE_EXECUTABLE_IMAGE
            | pe::IMAGE_FILE_LARGE_ADDRESS_AWARE
            | pe::IMAGE_FILE_DEBUG_STRIPPED,
        major_linker_version: 0,
        minor_linker_version: 0,
        address_of_entry_point: loader.entry,
        image_base: 0,
        major_operating_system_version: 0,
        minor_operating_system_version: 0,
        major_image_version: 0,
        minor_image_version: 0,
        major_subsystem_version: 0,
        minor_subsystem_version: 0,
        subsystem: pe::IMAGE_SUBSYSTEM_EFI_APPLICATION,
        dll_characteristics: pe::IMAGE_DLLCHARACTERISTICS_NX_COMPAT | pe::IMAGE_DLLCHARACTERISTICS_DYNAMIC_BASE,
        size_of_stack_reserve: 0,
        size_of_stack_commit: 0,
        size_of_heap_reserve: 0,
        size_of_heap_commit: 0,
    });
    writer.write_section_headers();
    for (range, section) in ranges.iter().zip(&loader.sections) {
        writer.write_section(range.file_offset, &section.content);
    }
    writer.write_reloc_section();
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::read::pe::PeFile64;
    use object::{Object as _, ObjectSection as _};

    fn loader() -> Loader {
        let flags = pe::IMAGE_SCN_CNT_CODE | pe::IMAGE_SCN_MEM_EXECUTE | pe::IMAGE_SCN_MEM_READ;
        let text = Section { name: ".text", flags, address: Some(0x1000), size: 5000, content: vec![1; 5000] };
        let data = Section { name: ".data", flags, address: Some(0x3000), size: 9000, content: vec![2; 16] };
        Loader { sections: vec![text, data], entry: 0x1004, relocations: vec![0x3000, 0x3008] }
    }

    #[test]
    fn another_reader_finds_the_parts() {
        let mut loader = loader();
        set(&mut loader.sections, 0x3008, 0x1234).unwrap();
        loader.sections.extend([
            Section::data(".linux", &[3; 10_000]).unwrap(),
            Section::data(".initrd", b"archive").unwrap(),
            Section::data(".cmdline", b"init=/bin/x").unwrap(),
        ]);
        let file = write(&loader).unwrap();
        let read = PeFile64::parse(&*file).unwrap();
        assert_eq!((read.entry(), read.relative_address_base()), (0x1004, 0));
        let section = |name: &str| read.section_by_name(name).unwrap();
        assert_eq!((section(".text").address(), section(".text").size()), (0x1000, 5000));
        assert_eq!((section(".data").address(), section(".data").size()), (0x3000, 9000));
        assert_eq!(section(".data").data().unwrap()[8..10], [0x34, 0x12]);
        assert_eq!(section(".linux").data().unwrap()[..10_000], [3; 10_000]);
        assert_eq!(section(".cmdline").data().unwrap(), b"init=/bin/x");
        assert!(section(".reloc").size() > 0);
    }

    /// The loader's own reader, on the file as firmware lays it out in memory.
    #[test]
    fn the_loader_finds_its_parts() {
        let mut loader = loader();
        loader.sections.extend([
            Section::data(".linux", &[3; 10_000]).unwrap(),
            Section::data(".initrd", &[]).unwrap(),
            Section::data(".cmdline", b"quiet").unwrap(),
        ]);
        let file = write(&loader).unwrap();
        let read = PeFile64::parse(&*file).unwrap();
        let mut memory = file[..0x400].to_vec();
        for section in read.sections() {
            memory.resize((section.address() as usize).max(memory.len()), 0);
            memory.extend(section.data().unwrap());
        }
        let parts = efi_loader::Parts::find(&memory).unwrap();
        assert_eq!((parts.kernel, parts.archive, parts.words), (&[3; 10_000][..], &b""[..], &b"quiet"[..]));
    }

    #[test]
    fn relocations_stay_in_their_segments() {
        let mut sections = loader().sections;
        assert!(set(&mut sections, 0x3008, 1).is_ok());
        assert!(set(&mut sections, 0x3009, 1).is_err());
        assert!(set(&mut sections, 0xfff, 1).is_err());
        assert!(file(b"no loader", b"", b"", "").is_err());
    }
}
