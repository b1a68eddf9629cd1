//! A bare-metal program that tests the machine with user-level interrupts: the N extension, the UIPI instructions and
//! their interrupt controller, as the patches of boards/uintc add them to QEMU.
//!
//! The program runs in supervisor mode under the firmware, without paging and without any part of COPS: a defect of the
//! machine must not look like one of the kernel. Each test writes a few instructions into memory, runs them in one of
//! the modes below until they trap, and compares registers.
#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod code;
#[cfg(target_os = "none")]
mod machine;
#[cfg(target_os = "none")]
mod suite;

#[cfg(not(target_os = "none"))]
fn main() {
    println!("this program runs without a kernel: build it for riscv64gc-unknown-none-elf and run it in QEMU");
}
