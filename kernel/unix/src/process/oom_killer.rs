//! The OOM killer: ends the process with the most memory when the machine has none left.

use alloc::sync::Arc;

use abi_queue::Priority;
use abi_queue::pages::PAGE_SIZE;
use abi_unix::types::signal;
use platform::println;

use crate::files::{carriers, disk, remains, volume};
use crate::process::exit_status::Ending;
use crate::process::table::{self, Walk};
use crate::process::{FIRST, Process, accounts};
use crate::scheduling::executor::{self, Attendant};

static KILLER: Attendant = Attendant::new();

/// Starts the OOM killer. Called once.
pub(crate) fn start() {
    accounts::call_when_short(|| KILLER.summon());
    executor::spawn_for_kernel(Priority::HIGHEST, kill_when_short());
}

/// Ends the largest process whenever the machine has nothing left, for ever.
#[doc(alias = "oom_reaper")]
async fn kill_when_short() {
    loop {
        KILLER.summoned().await;
        // The refused caller may have met the last moments of a process that has gone since.
        if accounts::is_short() {
            end_largest(accounts::is_short);
        }
    }
}

/// Makes memory free for a program that cannot go on without it, unless some is free already: the process with the most
/// ends, even if another one needs it. The memory of a process that has ended meanwhile is enough.
pub(crate) fn find_memory() {
    let is_short = || !memory::frames::available_to_programs(accounts::SPARE / PAGE_SIZE);
    if is_short() && !disk::give_back() && !volume::give_back() {
        end_largest(is_short);
    }
}

/// Ends the process with the most memory, because there is none left (the OOM killer). Its memory is free once its
/// workers have seen the end.
///
/// A process's size is the memory that would be free without it: its pages and their tables, and the kernel's memory
/// for its pipes, sockets, files and calls in flight. Files in memory that no process has open count for none; their
/// share of the machine has a limit of its own.
///
/// `is_short` is asked once more when no process is ending: the last one may have gone, with its memory free, since the
/// caller found none.
#[doc(alias = "oom_kill")]
#[doc(alias = "oom_badness")]
#[doc(alias = "out_of_memory")]
pub(crate) fn end_largest(is_short: impl Fn() -> bool) {
    if remains::free_any() {
        // The caller that lacks memory tries again.
        return;
    }
    let mut processes = Walk::above(0);
    while let Some(process) = processes.next() {
        if process.has_ended() {
            // One is ending already: enough for now.
            process.boost();
            return;
        }
    }
    if !is_short() {
        return;
    }
    // Sockets that only each other's messages hold are nobody's.
    if carriers::look_at_all(0) {
        return;
    }
    let mut largest: Option<(usize, Arc<Process>)> = None;
    // With the table unlocked in between: descriptor tables and kernel objects come before it in the order of locks.
    let mut processes = Walk::above(FIRST);
    while let Some(process) = processes.next() {
        let bytes = process.memory();
        if largest.as_ref().is_none_or(|(most, _)| bytes > *most) {
            largest = Some((bytes, process));
        }
    }
    let victim = largest.map(|(_, process)| process).or_else(|| table::find(FIRST));
    if let Some(victim) = victim {
        println!("[{}] killed: the memory is exhausted and it has most of it", victim.id);
        victim.end(Ending::Killed(signal::KILL as u8));
        victim.boost();
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::testing::{Program, run};

    /// A process that has touched so many pages, and waits.
    fn holder(pages: usize) -> impl FnOnce(&mut Program) + Send + 'static {
        move |program| {
            let start = program.call(SystemCall::Map, [0, pages * 4096, 3, 0x22, usize::MAX, 0]).unwrap();
            for page in 0..pages {
                program.write(start + page * 4096, &[1]);
            }
            program.sleep_ns(1_000_000_000);
        }
    }

    /// The memory of a socket is in the charge of the process that made it, and counts once.
    #[test]
    fn sockets_count_once_for_their_maker() {
        run(|program| {
            let own = program.spawn(|program| {
                for port in 0..8u16 {
                    let socket = program.call(SystemCall::Socket, [2, 2, 0, 0, 0, 0]).unwrap();
                    let mut address = [0; 16];
                    address[..4].copy_from_slice(&[2, 0, 0x20, port as u8]);
                    let at = program.store(&address);
                    assert_eq!(program.call(SystemCall::Bind, [socket, at, 16, 0, 0, 0]), Ok(0));
                }
                program.sleep_ns(1_000_000_000);
            });
            program.sleep_ns(10_000_000);
            let process = table::find(own.unwrap() as u32).expect("it sleeps");
            let pages = process.space().lock().resident_frames() * memory::PAGE_SIZE as usize;
            let charged = process.account.own(accounts::Resource::Memory);
            assert!(process.descriptors.lock().memory_of_files(&accounts::Account::of_the_first()) > 0);
            assert_eq!(process.memory(), pages + charged);
        });
    }

    /// The largest goes, and nobody else as long as it has not gone.
    #[test]
    fn the_largest_process_goes_and_no_other_with_it() {
        run(|program| {
            let children = [30, 400, 60].map(|pages| program.spawn(holder(pages)).unwrap());
            program.sleep_ns(10_000_000);
            for _ in 0..3 {
                end_largest(|| true);
            }
            assert_eq!(program.wait_for(usize::MAX), Ok((children[1], signal::KILL)));
            end_largest(|| true);
            assert_eq!(program.wait_for(usize::MAX), Ok((children[2], signal::KILL)));
            assert_eq!(program.wait_for(usize::MAX), Ok((children[0], 0)));
            let output = crate::testing::simulation().output();
            assert_eq!(output.matches("it has most of it").count(), 2, "{output}");
        });
    }
}
