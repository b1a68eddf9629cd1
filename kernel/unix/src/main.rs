//! The Unix-like kernel as an image: memory first, then the kernel.
#![cfg_attr(target_os = "none", no_std)]
#![cfg_attr(target_os = "none", no_main)]
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!("the kernel runs on RISC-V: build and boot it with `cargo xtask run`");
    std::process::exit(1);
}

#[cfg(target_os = "none")]
mod image {
    use coroutine::Table;
    use hal_api::{BootInformation, Machine as _, Status};
    use kernel_unix::Parts;
    use memory::heap::Heap;
    use platform::{Machine, println};

    platform::machine::entry!(main, hart_main);

    /// Hart numbers without a call through a pointer: every allocation needs one.
    struct ThisHart;

    impl memory::hart::CurrentHart for ThisHart {
        #[inline(always)]
        fn current() -> usize {
            Machine::hart()
        }
    }

    #[global_allocator]
    static HEAP: Heap<ThisHart> = Heap::new();

    const SCHEDULER: &[u8] = include_bytes!(env!("COPS_VDSO_IMAGE"));

    /// The scheduler's image, in pages of its own that are executable and never writable.
    #[repr(C, align(4096))]
    struct Image([u8; SCHEDULER.len()]);

    // SAFETY: the section holds nothing else, and the linker script puts it into the executable segment, from where the
    // bytes are run as the scheduler's image and nothing else.
    #[unsafe(link_section = ".vdso")]
    #[used]
    static IMAGE: Image = Image(*include_bytes!(env!("COPS_VDSO_IMAGE")));

    fn main(boot: &'static BootInformation) -> ! {
        let platform = match platform::start(boot) {
            Ok(platform) => platform,
            Err(reason) => fail(format_args!("the device tree cannot be used: {reason}")),
        };
        let mut ranges = [const { 0..0 }; 16];
        for (range, &(start, end)) in ranges.iter_mut().zip(platform.free_memory.iter()) {
            *range = start..end;
        }
        let count = platform.free_memory.len().min(ranges.len());
        let direct_map = Machine::direct_map(0) as u64;
        if let Err(reason) = memory::frames::init(&ranges[..count], direct_map, Machine::hart) {
            fail(format_args!("the memory cannot be used: {reason}"));
        }
        let initial_files = match platform.initial_files {
            None => &[],
            // SAFETY: the platform has checked that the range is memory, has kept it out of the free memory that the
            // frame allocator was given, and the direct map covers it; no code writes to it.
            Some((start, end)) => unsafe {
                core::slice::from_raw_parts(Machine::direct_map(start), (end - start) as usize)
            },
        };
        // SAFETY: this is the scheduler's image as it was built, in the executable segment, for ever.
        let scheduler = match unsafe { Table::from_image(&IMAGE.0) } {
            Ok(scheduler) => scheduler,
            Err(reason) => fail(format_args!("the scheduler's image cannot be used: {reason:?}")),
        };
        kernel_unix::start(platform, Parts { scheduler, image: &IMAGE.0, initial_files })
    }

    fn hart_main(_hart: usize) -> ! {
        platform::join();
        kernel_unix::run_hart()
    }

    fn fail(reason: core::fmt::Arguments) -> ! {
        println!("the kernel cannot start: {reason}");
        kernel_unix::machine::shut_down(Status::Failure(1))
    }
}
