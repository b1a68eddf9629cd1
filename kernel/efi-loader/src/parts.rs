//! The parts of the loader's own file, as the firmware has put it into memory: the sections of a PE file (Microsoft,
//! "PE Format"), found by the headers that lie before them.

use crate::Reason;

/// Offsets in the headers.
mod header {
    /// Offset of the second header.
    pub const PLACE: usize = 0x3c;
    pub const SIGNATURE: &[u8] = b"PE\0\0";
    pub const SECTIONS: usize = 6;
    pub const OPTIONAL_SIZE: usize = 20;
    pub const OPTIONAL: usize = 24;
    /// Size of a section's header; its name is first.
    pub const SECTION: usize = 40;
    pub const NAME: usize = 8;
    pub const SIZE: usize = 8;
    pub const ADDRESS: usize = 12;
}

/// Offsets in a kernel's header (Linux's documentation, arch/riscv/boot-image-header.rst).
mod image {
    pub const SIZE: usize = 16;
    pub const MAGIC: usize = 56;
    pub const RISCV: &[u8] = b"RSC\x05";
}

/// The parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// The kernel's image.
    pub kernel: &'a [u8],
    /// The archive of programs.
    pub archive: &'a [u8],
    /// The boot words.
    pub words: &'a [u8],
}

impl<'a> Parts<'a> {
    /// Finds the parts in a loaded file.
    ///
    /// # Errors
    ///
    /// One is missing or leads out of the file: its name.
    pub fn find(file: &'a [u8]) -> Result<Parts<'a>, Reason> {
        let part = |name: &'static str| section(file, name.as_bytes()).ok_or(Reason::NoPart(name));
        Ok(Parts { kernel: part(".linux")?, archive: part(".initrd")?, words: part(".cmdline")? })
    }
}

fn section<'a>(file: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let headers = file.get(word(file, header::PLACE)?..)?;
    if !headers.starts_with(header::SIGNATURE) {
        return None;
    }
    let count = half(headers, header::SECTIONS)?;
    let table = headers.get(header::OPTIONAL + half(headers, header::OPTIONAL_SIZE)?..)?;
    let found = table.chunks_exact(header::SECTION).take(count).find(|section| {
        let stored = section.get(..header::NAME).unwrap_or_default();
        stored.strip_prefix(name).is_some_and(|rest| rest.iter().all(|byte| *byte == 0))
    })?;
    let start = word(found, header::ADDRESS)?;
    file.get(start..start.checked_add(word(found, header::SIZE)?)?)
}

/// Returns the memory that a kernel needs, in bytes.
///
/// # Errors
///
/// It is no kernel for RISC-V.
pub fn kernel_size(kernel: &[u8]) -> Result<usize, Reason> {
    let magic = kernel.get(image::MAGIC..image::MAGIC + image::RISCV.len());
    let size = kernel.get(image::SIZE..).and_then(|rest| rest.first_chunk()).map(|size| u64::from_le_bytes(*size));
    match (magic, size) {
        (Some(image::RISCV), Some(size)) if size >= kernel.len() as u64 => {
            usize::try_from(size).map_err(|_| Reason::NoKernel)
        }
        _ => Err(Reason::NoKernel),
    }
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?) as usize)
}

fn half(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with headers alone, and a section of each name with its number of bytes.
    fn file(sections: &[(&str, usize)]) -> Vec<u8> {
        let mut file = vec![0; 0x1000];
        file[0x3c] = 0x80;
        let headers = &mut file[0x80..];
        headers[..4].copy_from_slice(b"PE\0\0");
        headers[6] = sections.len() as u8;
        headers[20] = 0x10;
        let mut address = 0x1000;
        for (index, (name, size)) in sections.iter().enumerate() {
            let section = &mut headers[24 + 0x10 + 40 * index..][..40];
            section[..name.len()].copy_from_slice(name.as_bytes());
            section[8..12].copy_from_slice(&(*size as u32).to_le_bytes());
            section[12..16].copy_from_slice(&(address as u32).to_le_bytes());
            address += 0x1000;
        }
        for (index, (_, size)) in sections.iter().enumerate() {
            file.resize(0x1000 * (index + 1), 0);
            file.extend(vec![index as u8 + 1; *size]);
        }
        file
    }

    #[test]
    fn parts_are_found_by_their_names() {
        let file = file(&[(".text", 10), (".linux", 100), (".initrd", 7), (".cmdline", 3)]);
        let parts = Parts::find(&file).unwrap();
        assert_eq!((parts.kernel, parts.archive, parts.words), (&[2; 100][..], &[3; 7][..], &[4; 3][..]));
    }

    #[test]
    fn a_missing_part_is_named() {
        let missing = |sections: &[(&str, usize)]| Parts::find(&file(sections)).unwrap_err();
        assert_eq!(missing(&[(".linux", 1), (".cmdline", 1)]), Reason::NoPart(".initrd"));
        assert_eq!(missing(&[(".linux2", 1), (".initrd", 1), (".cmdline", 1)]), Reason::NoPart(".linux"));
    }

    #[test]
    fn damaged_headers_lead_nowhere() {
        let whole = file(&[(".linux", 100), (".initrd", 7), (".cmdline", 3)]);
        for length in 0..whole.len() {
            let _ = Parts::find(&whole[..length]);
        }
        // Each byte of the headers, with values at the edges.
        for place in (0x3c..0x40).chain(0x80..0x80 + 24 + 0x10 + 3 * 40) {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut file = whole.clone();
                file[place] = value;
                let _ = Parts::find(&file);
            }
        }
        assert!(Parts::find(b"MZ").is_err());
    }

    #[test]
    fn kernels_say_how_much_memory_they_need() {
        let mut kernel = vec![0; 64];
        kernel[56..60].copy_from_slice(b"RSC\x05");
        kernel[16..24].copy_from_slice(&4096_u64.to_le_bytes());
        assert_eq!(kernel_size(&kernel), Ok(4096));
        assert_eq!(kernel_size(&kernel[..59]), Err(Reason::NoKernel));
        // Less than is in the file.
        kernel[16..24].copy_from_slice(&63_u64.to_le_bytes());
        assert_eq!(kernel_size(&kernel), Err(Reason::NoKernel));
        kernel[16..24].copy_from_slice(&4096_u64.to_le_bytes());
        kernel[59] = 4;
        assert_eq!(kernel_size(&kernel), Err(Reason::NoKernel));
    }
}
