//! The microkernel as an image.
//!
//! It starts in one of two ways. Firmware enters it with paging off, and the root task is an ELF file in the initial
//! file system; or seL4's own loader enters it with the root task in memory, and passes its location in registers.
#![cfg_attr(target_os = "none", no_std)]
#![cfg_attr(target_os = "none", no_main)]
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!("the microkernel runs on RISC-V: build and boot it with `cargo xtask run --kernel micro`");
    std::process::exit(1);
}

#[cfg(target_os = "none")]
mod image {
    use hal_api::{BootInformation, Machine as _, Status};
    use kernel_micro::boot::{self, RootTask};
    use kernel_micro::boot_words::{BUILT_IN, Configuration};
    use kernel_micro::{MAXIMUM_NODES, console, machine};
    use platform::Machine;

    platform::machine::entry!(main, hart_main);

    fn main(boot: &'static BootInformation) -> ! {
        let platform = match platform::prepare(boot) {
            Ok(platform) => platform,
            Err(reason) => fail(format_args!("the device tree cannot be used: {reason}")),
        };
        machine::start(platform);
        let root = match (platform::machine::loader_arguments(), platform.initial_files) {
            (Some(loader), _) => RootTask::Loaded {
                start: loader.image_start,
                end: loader.image_end,
                offset: loader.physical_offset,
                entry: loader.entry,
            },
            (None, Some(place @ (start, end))) => {
                // SAFETY: the platform has checked that the range is memory and has kept it out of the free memory; the
                // direct map covers it, and it is not written before the last use of this slice, which is in boot.
                let file = unsafe { core::slice::from_raw_parts(Machine::direct_map(start), (end - start) as usize) };
                RootTask::File(file, Some(place))
            }
            (None, None) => RootTask::File(&[], None),
        };
        // seL4's loader starts as many harts as it was built for, and ignores other harts of the machine.
        let harts = platform.hart_ids.len();
        if harts > MAXIMUM_NODES && !matches!(root, RootTask::Loaded { .. }) {
            fail(format_args!("the machine has {harts} harts, more than this kernel is built for ({MAXIMUM_NODES})"));
        }
        let nodes = harts.min(MAXIMUM_NODES);
        let configuration = match Configuration::read(&[BUILT_IN, platform.arguments]) {
            Ok(configuration) => configuration,
            Err(refused) => fail(format_args!("{refused}")),
        };
        if let Err(reason) = boot::start(platform, boot, root, nodes, &configuration) {
            fail(format_args!("{reason}"));
        }
        let running = if nodes > 1 { platform::start_harts(nodes) } else { 1 };
        if running < nodes {
            fail(format_args!("{running} of {nodes} harts run"));
        }
        boot::join();
        kernel_micro::run()
    }

    fn hart_main(_hart: usize) -> ! {
        boot::join();
        kernel_micro::run()
    }

    fn fail(reason: core::fmt::Arguments) -> ! {
        console::print(format_args!("the microkernel cannot start: {reason}\n"));
        platform::shut_down(Status::Failure(1))
    }
}
