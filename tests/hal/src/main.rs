//! A kernel that tests the machine below kernels.
#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod programs;
#[cfg(target_os = "none")]
mod suite;

#[cfg(target_os = "none")]
hal_riscv64::entry!(suite::main, suite::hart_main);

#[cfg(not(target_os = "none"))]
fn main() {
    println!("this program is a kernel: build it for riscv64gc-unknown-none-elf and run it in QEMU");
}
