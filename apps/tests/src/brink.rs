//! The brink of memory: calls that take much of it, on all harts at once, while the machine has hardly any left.
//!
//! One process holds nearly all memory. Others, more than there are harts, begin as soon as little is left, and make
//! calls each of which takes more than that: they are refused, or the holder is killed, and then another one takes its
//! place. A kernel that relies on memory which several harts have found free at once would panic.

use abi_unix::authority::{Capability, CapabilitySet, Held};
use abi_unix::types::{AT_FDCWD, mapping, open, protection};
use abi_unix::{Counter, SystemCall};
use alloc::vec::Vec;
use cops::process::{Child, Command, Ending};
use cops::system;
use cops::time::Duration;

use crate::harness::{self, Outcome, call, counter};
use crate::{check, must};

/// Frames that the holder leaves, and the number below which the others begin.
const LEFT: u64 = 700;
const LITTLE: u64 = 1000;
/// Calls of each kind that each of the others makes.
const ROUNDS: usize = 5;
/// Bytes of a write, and of a mapping with its pages.
const MUCH: usize = 1 << 20;
/// Entries of a list of descriptors, and bytes in a pipe.
const ENTRIES: usize = 8000;
const PIPE: usize = 64 << 10;

/// Exit statuses of a process that makes calls: none was refused, some were.
const NOT_REFUSED: u8 = 0;
const REFUSED: u8 = 1;

/// Runs as another process.
pub async fn act(what: &str) -> i32 {
    match what {
        "hold" => hold().await,
        _ => take().await,
    }
}

fn free() -> u64 {
    system::system::counter(Counter::FramesFree).unwrap_or(0)
}

async fn hold() -> i32 {
    while free() > LEFT {
        // Without memory for the mapping there is little enough.
        let Ok(memory) = system::memory::map(64 << 10) else { break };
        for page in 0..16 {
            // SAFETY: the mapping is ours and has that many pages.
            unsafe { memory.add(page * 4096).write_volatile(1) };
        }
    }
    cops::sleep(Duration::from_secs(1000)).await;
    0
}

async fn take() -> i32 {
    // All that the calls need is made before: this program's own allocations must not fail.
    let bytes = alloc::vec![1u8; MUCH];
    let list = alloc::vec![0u64; ENTRIES];
    let path = alloc::format!("/tmp/brink-{}\0", system::process::number());
    let mut ends = [0u32; 2];
    let no_time = [0u64; 2];
    let program = c"/bin/hello".as_ptr() as usize;
    let (words, none) = ([program, 0], [-1i32; 3]);
    while free() > LITTLE {
        cops::sleep(Duration::from_millis(2)).await;
    }
    let here = AT_FDCWD as usize;
    let flags = (mapping::PRIVATE | mapping::ANONYMOUS | mapping::POPULATE) as usize;
    let rights = (protection::READ | protection::WRITE) as usize;
    let mut refused = 0;
    let mut note = |result: system::Result<usize>| {
        refused += usize::from(result.is_err());
        result
    };
    for _ in 0..ROUNDS {
        let create = (open::CREAT | open::RDWR) as usize;
        if let Ok(file) = note(call(SystemCall::Open, [here, path.as_ptr() as usize, create, 0o600, 0, 0])) {
            let written = note(call(SystemCall::WriteAt, [file, bytes.as_ptr() as usize, MUCH, 0, 0, 0]));
            if written.is_ok_and(|written| written < MUCH) {
                let _ = note(Err(cops::Errno::ENOSPC));
            }
            let _ = call(SystemCall::Close, [file, 0, 0, 0, 0, 0]);
        }
        let _ = call(SystemCall::Unlink, [here, path.as_ptr() as usize, 0, 0, 0, 0]);
        let environment = &raw const words[1] as usize;
        let start = [program, words.as_ptr() as usize, environment, none.as_ptr() as usize, usize::MAX, 0];
        if let Ok(child) = note(call(SystemCall::Spawn, start)) {
            let _ = call(SystemCall::Wait, [child, 0, 0, 0, 0, 0]);
        }
        let poll = [list.as_ptr() as usize, ENTRIES, no_time.as_ptr() as usize, 0, 0, 0];
        let _ = note(call(SystemCall::Poll, poll));
        if let Ok(memory) = note(call(SystemCall::Map, [0, MUCH, rights, flags, usize::MAX, 0])) {
            let _ = call(SystemCall::Unmap, [memory, MUCH, 0, 0, 0, 0]);
        }
        let nonblock = open::NONBLOCK as usize;
        if note(call(SystemCall::Pipe, [ends.as_mut_ptr() as usize, nonblock, 0, 0, 0, 0])).is_ok() {
            let _ = note(call(SystemCall::Write, [ends[1] as usize, bytes.as_ptr() as usize, PIPE, 0, 0, 0]));
            for end in ends {
                let _ = call(SystemCall::Close, [end as usize, 0, 0, 0, 0, 0]);
            }
        }
    }
    i32::from(if refused > 0 { REFUSED } else { NOT_REFUSED })
}

fn start(what: &str) -> system::Result<Child> {
    Command::new(harness::OWN_PATH).argument("--act").argument("brink").argument(what).spawn()
}

/// Returns how a process has ended, if it has.
fn ending(child: &Child) -> Result<Option<Ending>, alloc::string::String> {
    let which = system::process::Child::Process(child.number());
    Ok(must!(system::process::wait(which, abi_unix::types::WNOHANG)).map(|(_, ending)| ending))
}

/// Calls that take much memory neither stop the kernel nor lose memory while all harts make them at its brink.
pub async fn all_harts_may_take_much_at_once() -> Outcome {
    let before = counter(Counter::FramesFree)?;
    // Children look how much is free.
    let held = must!(system::authority::held(0));
    must!(system::authority::set(0, Held { inheritable: CapabilitySet::only(Capability::Observe), ..held }));
    let harts = cops::time::global_page().map_or(1, |page| page.harts.load(core::sync::atomic::Ordering::Relaxed));
    let mut takers = Vec::new();
    for _ in 0..harts + 2 {
        takers.push(must!(start("take")));
    }
    let mut holder = must!(start("hold"));
    let (mut holders, mut refused) = (1, 0);
    // It ends after the brink alone.
    while !takers.is_empty() {
        cops::sleep(Duration::from_millis(5)).await;
        let mut left = Vec::new();
        for taker in takers {
            match ending(&taker)? {
                None => left.push(taker),
                Some(Ending::Exited(REFUSED)) => refused += 1,
                // The killer may find it the largest, when the holder has just gone. Others go on until the holder has
                // come to the brink.
                Some(Ending::Exited(NOT_REFUSED) | Ending::Killed(9)) if refused == 0 && holders == 1 => {
                    match start("take") {
                        Ok(taker) => left.push(taker),
                        Err(_refused) => refused += 1,
                    }
                }
                Some(Ending::Exited(NOT_REFUSED) | Ending::Killed(9)) => {}
                Some(other) => check!(false, "a process that takes memory has ended: {other:?}"),
            }
        }
        takers = left;
        if ending(&holder)?.is_some() {
            // Refused while the last one's memory is not free yet.
            while let Err(_refused) = start("hold").map(|child| holder = child) {
                cops::sleep(Duration::from_millis(5)).await;
            }
            holders += 1;
        }
    }
    must!(holder.kill());
    must!(holder.wait().await);
    harness::reaches(Counter::FramesFree, before.saturating_sub(500)).await
}
