//! The Unix-like kernel: processes made of coroutines, on a kernel made of coroutines.
//!
//! All work that can wait is done by kernel coroutines, run by the scheduler that runs in every process too; there is
//! one kernel stack for each hart. A reader starts with [`process::visit`], where user mode is a call that returns a
//! reason, then [`calls`], where registers become a decoded [`asynchronous::operation`], then the objects of these:
//! [`files`], [`network`], [`process`]. The choice of the next coroutine and the charges for time are in
//! [`scheduling`], and all reports in [`observing`].
//!
//! This crate is policy: it contains no unsafe code. Its access to the machine is `platform`, to physical memory
//! `memory`, to user mode `usermode`.
// The documentation is for readers of the kernel, who see private modules too.
#![allow(rustdoc::private_intra_doc_links)]
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod asynchronous;
mod calls;
mod files;
pub mod machine;
mod models;
mod network;
mod observing;
mod process;
mod random;
mod scheduling;
#[cfg(test)]
mod testing;
mod time;

use abi_queue::Priority;
use abi_unix::Counter;
use abi_unix::types::SYSTEM_NAME_FIELD;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use coroutine::Table;
use hal_api::{Machine as _, Status};
use platform::{Machine, Platform, println};

use crate::asynchronous::user_interrupts;
use crate::files::host_folder;
use crate::files::machine_end::{self, MachineEnd};
use crate::files::mounts::{self, AtStart};
use crate::files::tree::{self, DeviceTree};
use crate::files::{cleaning, console, remains, root};
use crate::machine::{boot_option, shut_down, split_line, words};
use crate::network::stack;
use crate::observing::{call_log, counters, latency, positions, processes, standstill, trace};
use crate::process::{accounts, authority, core_file, oom_killer, program, shared, table};
use crate::scheduling::{deferred_wakes, executor, payers, standing, stretch};

/// Returns the value of a counter, for tests of the kernel as a whole.
pub fn read_counter(counter: Counter) -> u64 {
    counters::read(counter)
}

/// Returns the number of completions that the first process has been posted, for such tests.
pub fn posted_to_the_first() -> u64 {
    table::find(1).map_or(0, |first| first.posted())
}

/// Parts of the kernel's image that the kernel uses.
pub struct Parts {
    /// The scheduler's functions, from its image.
    pub scheduler: Table,
    /// That image, to be mapped into every process.
    pub image: &'static [u8],
    /// The initramfs.
    pub initial_files: &'static [u8],
}

/// Starts the kernel on the first hart, once memory and heap are there, and never returns.
///
/// The program of `init=PROGRAM -- ARGUMENTS` on the boot command line becomes the first process; its end ends the
/// machine. With `root=DISK` it is one of that disk.
pub fn start(platform: &'static Platform, parts: Parts) -> ! {
    if let Err(reason) = prepare(platform, parts) {
        println!("the kernel cannot start: {reason}");
        shut_down(Status::Failure(1));
    }
    let harts = platform::start_harts(platform.hart_ids.len());
    machine::set_harts(harts);
    let line = platform.arguments;
    let (path, arguments) = first_program(line);
    println!("COPS: {harts} harts, {} MiB free, starting {path}", memory::frames::free_frames() / 256);
    executor::spawn_for_kernel(Priority::DEFAULT, async move {
        if let Err(reason) = begin(line, &path, arguments).await {
            println!("{reason}");
            return machine_end::begin(MachineEnd::Failed);
        }
        standstill::start();
    });
    run_hart()
}

/// Mounts the first file systems, and starts the first process. Says why it cannot.
async fn begin(line: &str, path: &str, arguments: Vec<Vec<u8>>) -> Result<(), String> {
    match root::named_by(line) {
        Some(root) => root.mount().await?,
        None => {
            let mounted = mounts::mount_at_start("/proc", AtStart::Proc).await;
            mounted.map_err(|error| format!("cannot mount /proc: {error}"))?;
        }
    }
    if let Err(error) = mounts::mount_at_start("/dev/mqueue", AtStart::Queues).await {
        println!("cannot mount /dev/mqueue: {error}");
    }
    if let Err(error) = mounts::mount_host_at_start().await {
        // A machine that starts can be mended.
        println!("the host's folder is not mounted at {}: {error}", host_folder::PLACE_AT_START);
    }
    let started = program::start_first(path, arguments).await;
    started.map_err(|error| {
        format!("cannot start {path}: {error}; name another program with init=PATH on the boot command line")
    })
}

fn prepare(platform: &'static Platform, parts: Parts) -> Result<(), &'static str> {
    time::start(platform.timebase_frequency, platform.real_time_ns(), platform.hart_ids.len());
    random::start(platform);
    // Before there are coroutines, so that all of them are traced.
    trace::start(boot_option(platform.arguments, "trace"), platform.hart_ids.len());
    executor::start(parts.scheduler)?;
    accounts::start(platform.hart_ids.len());
    oom_killer::start();
    process::told_owners::start();
    deferred_wakes::start();
    shared::start(parts.image, platform.timebase_frequency, time::epoch_ns(), platform.hart_ids.len() as u64)
        .map_err(|_| "there is no memory for the shared pages")?;
    call_log::start(boot_option(platform.arguments, "calls"));
    core_file::name::start(boot_option(platform.arguments, "core"));
    time::choose_slice(boot_option(platform.arguments, "slice"));
    scheduling::start(|name| boot_option(platform.arguments, name))?;
    user_interrupts::start(boot_option(platform.arguments, "user-interrupts"), platform.hart_ids.len());
    program::start(boot_option(platform.arguments, "aslr"));
    authority::start(boot_option(platform.arguments, "authority"));
    files::disk::start(platform);
    host_folder::start(platform);
    let device_tree = match root::named_by(platform.arguments) {
        Some(_) => DeviceTree::Own,
        None => DeviceTree::OfArchive,
    };
    tree::start(parts.initial_files, device_tree)?;
    processes::start();
    cleaning::start();
    console::start()?;
    positions::start();
    latency::start(boot_option(platform.arguments, "latencies"));
    stack::start(platform);
    counters::start_gauges(stack::connections);
    Ok(())
}

/// Runs the loop of a hart, for ever: polls the most important coroutine and looks for interrupts; if nothing is ready,
/// frees remains of files that have gone, or sleeps.
pub fn run_hart() -> ! {
    let mut worker = executor::HartWorker::of_this_hart();
    payers::skip();
    loop {
        let _ = machine::on_interrupt();
        stretch::looked_by_the_executor();
        usermode::release_retired();
        shared::publish(standing::claims_worth(executor::waiting()));
        // A hart with remains comes by here before it sleeps.
        if worker.run_one() {
            continue;
        }
        if remains::free_any() {
            payers::skip();
            counters::count(Counter::Looks);
        } else {
            sleep();
        }
    }
}

/// Waits for an interrupt in a time that nothing pays for.
fn sleep() {
    let begin = Machine::now();
    Machine::wait_for_interrupt();
    payers::skip();
    counters::add(Counter::IdleNs, time::ns_at_ticks(Machine::now().wrapping_sub(begin)));
    stretch::waited();
}

/// Parses `init=PATH -- ARGUMENT …` into path and arguments; the path is the first argument too.
fn first_program(line: &str) -> (String, Vec<Vec<u8>>) {
    let rest = split_line(line).1;
    let default = if root::named_by(line).is_some() { "/sbin/init" } else { "/bin/hello" };
    let path = boot_option(line, "init").unwrap_or(default);
    let mut arguments = alloc::vec![path.as_bytes().to_vec()];
    arguments.extend(words(rest).into_iter().map(String::into_bytes));
    (path.into(), arguments)
}

/// Returns the contents of `struct utsname`.
pub fn system_name() -> [u8; 6 * SYSTEM_NAME_FIELD] {
    let fields =
        ["COPS", "cops", env!("CARGO_PKG_VERSION"), concat!("#1 SMP COPS ", env!("CARGO_PKG_VERSION")), "riscv64", ""];
    let mut bytes = [0; 6 * SYSTEM_NAME_FIELD];
    for (place, field) in bytes.chunks_exact_mut(SYSTEM_NAME_FIELD).zip(fields) {
        let length = field.len().min(SYSTEM_NAME_FIELD - 1);
        place[..length].copy_from_slice(&field.as_bytes()[..length]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_names_the_first_program() {
        let (path, arguments) = first_program("quiet init=/bin/tests -- one two");
        assert_eq!(path, "/bin/tests");
        assert_eq!(arguments, [b"/bin/tests".to_vec(), b"one".to_vec(), b"two".to_vec()]);
        assert_eq!(first_program("").0, "/bin/hello");
        assert_eq!(first_program("root=/dev/vda").0, "/sbin/init");
    }

    #[test]
    fn options_stand_before_the_dashes() {
        let line = "local=packets init=/bin/x locale=C local=joined -- init=/bin/y other=1";
        assert_eq!(boot_option(line, "local"), Some("packets"));
        assert_eq!(boot_option(line, "init"), Some("/bin/x"));
        assert_eq!(boot_option(line, "other"), None);
        assert_eq!(boot_option("local", "local"), None);
        assert_eq!(boot_option("local=", "local"), Some(""));
    }

    #[test]
    fn the_system_s_name_is_terminated() {
        let name = system_name();
        assert_eq!(&name[..5], b"COPS\0");
        assert!(name.chunks(SYSTEM_NAME_FIELD).all(|field| field.last() == Some(&0)));
    }
}
