//! The tests.

use hal_api::{BootInformation, Machine as _, Status};
use platform::{Machine, println};

pub fn main(boot: &'static BootInformation) -> ! {
    let platform = match platform::start(boot) {
        Ok(platform) => platform,
        Err(damaged) => {
            println!("{damaged}");
            Machine::shutdown(Status::Failure(2))
        }
    };
    println!("harts {:?} memory {:x?} free {:x?}", platform.hart_ids, platform.memory, platform.free_memory);
    println!("{:x?} {:x?}", platform.serial, platform.controller);
    platform::console_flush();
    Machine::shutdown(Status::Success)
}

pub fn hart_main(_hart: usize) -> ! {
    platform::join();
    loop {
        Machine::wait_for_interrupt();
    }
}
