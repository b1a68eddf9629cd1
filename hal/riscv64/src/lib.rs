//! RISC-V 64: all kernel assembly.
//!
//! This crate runs under the firmware's supervisor binary interface (SBI) in supervisor mode, with Sv39 paging. It
//! brings one hart from the firmware's entry point into the upper half (`boot`), builds the kernel's page table
//! ([`tables`]), starts the other harts, enters user mode (`trap`) and reports the kernel's own faults (`report`). It
//! reads no device tree and contains no driver: the platform reads the device tree and calls `configure`.
//!
//! The virtual layout, upper half:
//!
//! | from | content | access |
//! |---|---|---|
//! | `0xffff_ffc0_0000_0000` | direct map of physical memory, 64 GiB | RW; the image's text and constants R; never X |
//! | `0xffff_ffd0_0000_0000` | device window: physical addresses that are not memory, 64 GiB | RW |
//! | `0xffff_ffe0_0000_0000` | kernel-thread stacks, each above an equally large guard region, 128 MiB | RW |
//! | `0xffff_ffff_8020_0000` | the kernel image | text RX, constants R, data RW, a guard region below each stack |
//!
//! **Register contract.** In the kernel `tp` points to the hart's own `HartArea`, `sscratch` is 0 and
//! `sstatus.SIE` is 0. In user mode `sscratch` points to the program's context. `gp` belongs to the program alone: the
//! kernel is linked without relaxation against it.
//!
//! A kernel binary contains
//!
//! ```text
//! #![no_std]
//! #![no_main]
//! hal_riscv64::entry!(main, hart_main);
//! fn main(boot: &'static hal_api::BootInformation) -> ! { … }   // on the hart that booted
//! fn hart_main(hart: usize) -> ! { … }                          // on each other hart, once it is started
//! ```
//!
//! and links with `-Tkernel.ld`, which this crate's build script puts on the search path. It is compiled with
//! `-Cforce-frame-pointers=yes`, for the list of callers in fault reports. Kernel code must not use floating point: the
//! registers may be a program's. The build refuses a kernel with such an instruction; until a program has used the unit
//! it is off, and its use is a fault like any other.
#![cfg_attr(not(test), no_std)]

pub mod tables;

#[cfg(target_os = "none")]
mod boot;
#[cfg(target_os = "none")]
mod csr;
#[cfg(target_os = "none")]
mod device;
#[cfg(target_os = "none")]
mod guest;
#[cfg(target_os = "none")]
mod hart;
#[cfg(target_os = "none")]
mod layout;
#[cfg(target_os = "none")]
mod machine;
#[cfg(target_os = "none")]
mod memory_functions;
#[cfg(target_os = "none")]
mod report;
#[cfg(all(target_os = "none", feature = "thread-stacks"))]
mod stacks;
#[cfg(target_os = "none")]
mod trap;
#[cfg(target_os = "none")]
mod user_level;

#[cfg(target_os = "none")]
pub use boot::{
    LoaderArguments, give_up_hart, has_arrived, image, image_to_physical, loader_arguments, start_hart, vdso_pages,
};
#[cfg(target_os = "none")]
pub use csr::{claim_external, clear_ipi, instructions, read_imsic, write_imsic};
#[cfg(target_os = "none")]
pub use device::Window;
#[cfg(target_os = "none")]
pub use guest::use_guest_files;
#[cfg(target_os = "none")]
pub use machine::{
    Riscv64, configure, cycles, errata, has_page_types, has_timer_register, pending, set_doorbell, use_test_device,
};
#[cfg(target_os = "none")]
pub use report::{early_write, panic_report, set_panic_writer};
#[cfg(all(target_os = "none", feature = "thread-stacks"))]
pub use stacks::{
    STACK_WINDOW, THREAD_STACK_SIZE, THREAD_STACKS, prepare_stack, set_thread_stack, set_thread_stack_joined,
    switch_stack, thread_stack_top,
};

#[cfg(target_os = "none")]
pub use user_level::{arm, disarm, prepare_user_level};

/// Makes a binary a kernel. Takes the function that runs first on the hart that booted, `fn(&'static BootInformation)
/// -> !`, and the function for each other hart, `fn(hart: usize) -> !`. Installs the panic handler.
#[macro_export]
macro_rules! entry {
    ($main:path, $hart_main:path) => {
        #[cfg(target_os = "none")]
        const _: () = {
            /// Starts the kernel; called once by the boot code, on the hart that booted.
            #[unsafe(no_mangle)]
            fn kernel_main(boot: &'static $crate::BootInformation) -> ! {
                let main: fn(&'static $crate::BootInformation) -> ! = $main;
                main(boot)
            }

            /// Joins the kernel; called once by the boot code on every other hart.
            #[unsafe(no_mangle)]
            fn kernel_hart_main(hart: usize) -> ! {
                let main: fn(usize) -> ! = $hart_main;
                main(hart)
            }

            #[panic_handler]
            fn panic(information: &::core::panic::PanicInfo) -> ! {
                $crate::panic_report(information)
            }
        };
    };
}

#[doc(hidden)]
pub use hal_api::BootInformation;
