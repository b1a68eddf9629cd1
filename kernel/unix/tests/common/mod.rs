//! The machine that the kernel's tests boot on the host, and the file of a program for it.

use hal_api::BootInformation;
use program::FOR_COPS;

/// The fake machine's boot information.
pub static BOOT: BootInformation = BootInformation {
    device_tree: include_bytes!("../../../platform/fixtures/virt-plic.dtb"),
    device_tree_address: 0x8700_0000,
    boot_hart_id: 2,
    image: (0x8020_0000, 0x8040_0000),
};

/// The address of a program's code: one page, which is never executed.
pub const CODE: u64 = 0x1_0000;
/// The address of a program's memory.
pub const DATA: usize = 0x2_0000;

/// Makes an executable file for RISC-V: a page of code, and memory that begins with these bytes.
pub fn program(data: &[u8], length: usize) -> Vec<u8> {
    assert!(data.len() <= length);
    let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
    bytes.resize(16, 0);
    for half in [2u16, 243] {
        bytes.extend(half.to_le_bytes());
    }
    bytes.extend(1u32.to_le_bytes());
    for word in [CODE, 64, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(5u32.to_le_bytes());
    for half in [64u16, 56, 3, 64, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    let segments = [(5u32, 0, CODE, 4096, 4096), (6, 4096, DATA as u64, data.len() as u64, length as u64)];
    for (flags, offset, address, in_file, in_memory) in segments {
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        for word in [offset, address, address, in_file, in_memory, 4096] {
            bytes.extend(word.to_le_bytes());
        }
    }
    // It says that it was built for COPS.
    bytes.extend(FOR_COPS.to_le_bytes());
    bytes.resize(4096, 0);
    bytes.extend(data);
    bytes
}
