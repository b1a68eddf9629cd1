//! Files for boot loaders: the kernel's image without ELF, a script for U-Boot that fetches and starts it, and the
//! configuration by which other loaders (extlinux) do the same; and the boot loaders that the tests start.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use object::elf::PT_LOAD;
use object::read::elf::{ElfFile64, ProgramHeader as _};

use crate::apt::{Apt, Packages};
use crate::efi;
use crate::emulator;
use crate::progress::Progress;

/// U-Boot as Debian builds it for QEMU's machine, started by OpenSBI as a kernel is.
pub const U_BOOT: &str = "/usr/lib/u-boot/qemu-riscv64_smode/uboot.elf";

/// Debian's release and package with EDK2, and its two files.
const EDK2: (&str, &str) = ("trixie", "qemu-efi-riscv64");
const EDK2_FILES: [&str; 2] = ["RISCV_VIRT_CODE.fd", "RISCV_VIRT_VARS.fd"];

/// Name of the kernel's image, as boot loaders know Linux's.
pub const IMAGE: &str = "Image";

/// Name of the script, which U-Boot fetches from the server that gives it an address.
pub const SCRIPT: &str = "boot.scr.uimg";

/// Longest image: a file that claims more is no kernel.
const LONGEST_IMAGE: u64 = 256 << 20;

/// The header of U-Boot's images (its `include/image.h`): 64 bytes, numbers in big-endian order.
mod header {
    pub const MAGIC: u32 = 0x2705_1956;
    pub const LINUX: u8 = 5;
    pub const RISCV: u8 = 26;
    pub const SCRIPT: u8 = 6;
    pub const NOT_COMPRESSED: u8 = 0;
    pub const NAME: &[u8; 4] = b"COPS";
    /// Bytes of the name's field.
    pub const NAME_SIZE: usize = 32;
}

/// Returns the bytes of a kernel's file as they lie in memory. The first 64 are the header that boot loaders know.
///
/// # Errors
///
/// The file cannot be read, or is no kernel.
pub fn image(kernel: &Path) -> Result<Vec<u8>> {
    let content = std::fs::read(kernel).with_context(|| format!("cannot read {}", kernel.display()))?;
    flat(&content).with_context(|| format!("{} is no kernel", kernel.display()))
}

fn flat(content: &[u8]) -> Result<Vec<u8>> {
    let file: ElfFile64<'_, object::LittleEndian> = ElfFile64::parse(content)?;
    let endian = file.endian();
    let segments = || file.elf_program_headers().iter().filter(|segment| segment.p_type(endian) == PT_LOAD);
    let start = segments().map(|segment| segment.p_paddr(endian)).min().context("it has nothing to load")?;
    let mut image = Vec::new();
    for segment in segments() {
        let data = segment.data(endian, content).ok().context("a segment lies outside of the file")?;
        let offset = segment.p_paddr(endian) - start;
        let end = offset.saturating_add(data.len() as u64);
        if end > LONGEST_IMAGE {
            bail!("its segments lie too far apart");
        }
        let (offset, end) = (offset as usize, end as usize);
        if image.len() < end {
            image.resize(end, 0);
        }
        image[offset..end].copy_from_slice(data);
    }
    Ok(image)
}

/// Returns a script for U-Boot that fetches image and archive by TFTP from where it came itself, and starts the kernel
/// with these boot words.
pub fn script(words: &str) -> Vec<u8> {
    packed(&format!(
        "setenv bootargs '{words}'\n\
         tftpboot ${{kernel_addr_r}} {IMAGE} && tftpboot ${{ramdisk_addr_r}} initramfs.cpio && \
         booti ${{kernel_addr_r}} ${{ramdisk_addr_r}}:${{filesize}} ${{fdtcontroladdr}}\n"
    ))
}

/// Makes an image of a script.
fn packed(text: &str) -> Vec<u8> {
    let mut data = (text.len() as u32).to_be_bytes().to_vec();
    data.extend(0u32.to_be_bytes());
    data.extend(text.bytes());
    let header = |sum: u32| {
        let mut header = Vec::new();
        for word in [header::MAGIC, sum, 0, data.len() as u32, 0, 0, crc32fast::hash(&data)] {
            header.extend(word.to_be_bytes());
        }
        header.extend([header::LINUX, header::RISCV, header::SCRIPT, header::NOT_COMPRESSED]);
        header.extend(header::NAME);
        header.resize(header.len() + header::NAME_SIZE - header::NAME.len(), 0);
        header
    };
    let sum = crc32fast::hash(&header(0));
    [header(sum), data].concat()
}

/// Returns a script for U-Boot that fetches the file for EFI firmware from where it came itself, and starts it.
pub fn efi_script() -> Vec<u8> {
    packed(&format!("tftpboot ${{kernel_addr_r}} {} && bootefi ${{kernel_addr_r}} ${{fdtcontroladdr}}\n", efi::FILE))
}

/// Returns EDK2 for QEMU's machine, as its two flash memories want it: the code, and the firmware's variables. Debian's
/// package is fetched into the user's cache once.
///
/// # Errors
///
/// It cannot be fetched.
pub fn edk2(progress: &Progress) -> Result<[PathBuf; 2]> {
    let [code, variables] = EDK2_FILES;
    let directory = emulator::cache()?.join("edk2-riscv64");
    let files = [directory.join(code), directory.join(variables)];
    if !files.iter().all(|file| file.exists()) {
        let activity = progress.start("Fetching EDK2 from Debian");
        // The code last: it is there only if the variables are.
        for file in [variables, code] {
            emulator::keep(&directory.join(file), |work| {
                std::fs::create_dir_all(work).with_context(|| format!("cannot make {}", work.display()))?;
                let (suite, package) = EDK2;
                let apt = Apt::new(work, suite, Packages::Programs("amd64"))?;
                apt.update()?;
                Ok(apt.unpacked(package)?.join("usr/share").join(package).join(file))
            })?;
        }
        activity.finish("done");
    }
    Ok(files)
}

/// Returns the configuration for loaders that read `extlinux/extlinux.conf` beside image and archive.
pub fn extlinux(words: &str) -> String {
    format!("default cops\nlabel cops\n    kernel ../{IMAGE}\n    initrd ../initramfs.cpio\n    append {words}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_have_the_sums_that_u_boot_checks() {
        let script = script("init=/bin/hello");
        let word = |at: usize| u32::from_be_bytes(script[at..at + 4].try_into().unwrap());
        let (mut header, data) = (script[..64].to_vec(), &script[64..]);
        header[4..8].fill(0);
        assert_eq!((word(0), word(4)), (0x2705_1956, crc32fast::hash(&header)));
        assert_eq!((word(12) as usize, word(24)), (data.len(), crc32fast::hash(data)));
        assert_eq!(word(64) as usize + 8, data.len());
        assert!(String::from_utf8_lossy(data).contains("setenv bootargs 'init=/bin/hello'\n"));
    }

    #[test]
    fn other_files_are_no_kernels() {
        for content in [&b""[..], b"text", &[0; 100], b"\x7fELF\x02\x01\x01"] {
            assert!(flat(content).is_err());
        }
        assert!(image(Path::new("/nothing")).unwrap_err().to_string().contains("/nothing"));
    }
}
