//! The kernel's accounts of memory, and calls at their limits.

use abi_unix::types::{limit, open};
use abi_unix::{Counter, SystemCall};
use alloc::vec::Vec;
use cops::file::File;
use cops::io::pipe;
use cops::process::{Child, Command, Ending};
use cops::{Errno, system};

use crate::harness::{self, LIMIT, Outcome, call, counter};
use crate::{check, check_eq, must};

const SLEEP: abi_unix::types::TimeSpec = abi_unix::types::TimeSpec { seconds: 0, nanoseconds: 200_000 };

fn set(resource: u32, soft: u64) -> system::Result<()> {
    system::process::set_limit(0, resource, soft, limit::INFINITY)
}

/// Returns the bytes of the machine's memory.
fn machine_memory() -> Result<u64, alloc::string::String> {
    Ok(counter(Counter::FramesTotal)? * 4096)
}

pub async fn limits_are_checked_inherited_and_enforced() -> Outcome {
    let own = |resource| system::process::limit(0, resource);
    // Illegal calls first.
    check_eq!(own(limit::COUNT), Err(Errno::EINVAL));
    check_eq!(own(limit::CALLS_IN_FLIGHT + 1), Err(Errno::EINVAL));
    check_eq!(system::process::limit(30_000, limit::DESCRIPTORS), Err(Errno::ESRCH));
    check_eq!(call(SystemCall::ProcessLimit, [0, 7, 8, 0, 0, 0]), Err(Errno::EFAULT));
    check_eq!(call(SystemCall::ProcessLimit, [0, 7, 0, 8, 0, 0]), Err(Errno::EFAULT));
    check_eq!(system::process::set_limit(0, limit::DESCRIPTORS, 11, 10), Err(Errno::EINVAL));
    check_eq!(system::process::set_limit(0, limit::DESCRIPTORS, 10, (1 << 20) + 1), Err(Errno::EPERM));
    // A process that the first one starts has its share of the machine.
    let share = must!(own(limit::KERNEL_MEMORY));
    check_eq!(share.0, share.1);
    check!(share.0.abs_diff(machine_memory()? / 8) < 4096, "the share is {share:?}");
    // A limit without a meaning is stored, and inherited.
    must!(system::process::set_limit(0, 4, 1, 2));
    must!(system::process::set_limit(0, limit::DESCRIPTORS, 40, 50));
    let child = must!(harness::act("sleep"));
    check_eq!(system::process::limit(child.number(), 4), Ok((1, 2)));
    check_eq!(system::process::limit(child.number(), limit::DESCRIPTORS), Ok((40, 50)));
    must!(child.kill());
    must!(must!(harness::wait(&child).await.ok_or("it did not end")));

    let mut files = Vec::new();
    let refused = loop {
        match File::open("/dev/null") {
            Ok(file) => files.push(file),
            Err(error) => break error,
        }
    };
    check_eq!(refused, Errno::EMFILE);
    check!(files.iter().all(|file| file.descriptor().raw() < 40));
    check!(files.len() >= 30, "{} files", files.len());
    drop(files);

    must!(set(limit::PROCESSES, 1));
    let child = must!(harness::act("sleep"));
    check_eq!(harness::act("exit").err(), Some(Errno::EAGAIN));
    must!(child.kill());
    must!(must!(harness::wait(&child).await.ok_or("it did not end")));
    check_eq!(harness::ending_of_act("exit").await, Ok(Ending::Exited(0)));

    must!(set(limit::ADDRESS_SPACE, 1 << 30));
    check_eq!(system::memory::map(1 << 30).err(), Some(Errno::ENOMEM));
    check!(system::memory::map(1 << 20).is_ok());
    Ok(())
}

/// Without privilege: a hard limit cannot be raised, nor another process's changed.
pub async fn limits_of_others_need_privilege() -> Outcome {
    check_eq!(harness::ending_of_act("raise-limits").await, Ok(Ending::Exited(0)));
    Ok(())
}

/// Runs as the other side of [`limits_of_others_need_privilege`].
pub fn raise_limits() -> i32 {
    let which = limit::KERNEL_MEMORY;
    let Ok((soft, hard)) = system::process::limit(0, which) else { return 1 };
    let refused = [
        system::process::set_limit(0, which, soft, limit::INFINITY),
        system::process::set_limit(1, which, soft, hard),
        system::process::limit(1, which).map(drop),
    ];
    if refused != [Err(Errno::EPERM); 3] {
        return 2;
    }
    // Lowering is allowed, and irreversible.
    let lowered = system::process::set_limit(0, which, soft / 2, hard / 2).is_ok();
    let again = system::process::set_limit(0, which, soft / 4, hard / 2).is_ok();
    let raised = system::process::set_limit(0, which, soft / 2, hard);
    if lowered && again && raised == Err(Errno::EPERM) { 0 } else { 3 }
}

pub async fn with_no_memory_left_waits_go_on_and_things_are_given_back() -> Outcome {
    let before = counter(Counter::FramesFree)?;
    let path = "/tmp/given-back";
    let file = must!(File::open_with(path, open::CREAT | open::RDWR));
    must!(file.write_all(alloc::vec![7; 1 << 20]).await.0);
    let (reader, writer) = must!(pipe());
    let epoll = must!(call(SystemCall::EpollCreate, [0; 6]));
    let event = [1u8; 16];
    let watch = |operation: u32| {
        let (descriptor, event) = (reader.descriptor().raw() as usize, event.as_ptr() as usize);
        call(SystemCall::EpollControl, [epoll, operation as usize, descriptor, event, 0, 0])
    };
    use abi_unix::types::epoll::{CTL_ADD, CTL_DEL};
    must!(watch(CTL_ADD));
    let mapped = must!(system::memory::map(1 << 16));
    let child = must!(harness::act("exit"));
    let sleeper = must!(harness::act("sleep"));

    must!(set(limit::KERNEL_MEMORY, 0));
    // No new objects.
    check_eq!(pipe().err(), Some(Errno::ENOMEM));
    check_eq!(File::open("/dev/null").err(), Some(Errno::ENOMEM));
    check_eq!(harness::act("exit").err(), Some(Errno::ENOMEM));
    // Waits are no new objects.
    for _ in 0..20 {
        check_eq!(system::system::sleep(SLEEP), Ok(()));
    }
    let descriptor = reader.descriptor().raw() as usize;
    let mut list = [0u8; 8];
    list[..4].copy_from_slice(&(descriptor as u32).to_le_bytes());
    list[4] = abi_unix::types::epoll::IN as u8;
    let time = SLEEP.to_bytes();
    check_eq!(call(SystemCall::Poll, [list.as_ptr() as usize, 1, time.as_ptr() as usize, 0, 0, 0]), Ok(0));
    let mut events = [0u8; 16];
    check_eq!(call(SystemCall::EpollWait, [epoll, events.as_mut_ptr() as usize, 1, 1, 0, 0]), Ok(0));
    let word = 0u32;
    let wait = [&raw const word as usize, 0, 0, time.as_ptr() as usize, 0, 0];
    check_eq!(call(SystemCall::Futex, wait), Err(Errno::ETIMEDOUT));
    must!(sleeper.kill());
    for _ in 0..2 {
        check!(call(SystemCall::Wait, [usize::MAX, 0, 0, 0, 0, 0]).is_ok());
    }
    let _ = (child, sleeper);
    // Freeing needs no memory.
    must!(watch(CTL_DEL));
    check_eq!(call(SystemCall::Truncate, [file.descriptor().raw() as usize, 4096, 0, 0, 0, 0]), Ok(0));
    check_eq!(call(SystemCall::Truncate, [file.descriptor().raw() as usize, 0, 0, 0, 0, 0]), Ok(0));
    check_eq!(call(SystemCall::Close, [epoll, 0, 0, 0, 0, 0]), Ok(0));
    must!(cops::file::remove(path));
    // SAFETY: the mapping is this test's, and nothing refers to it.
    must!(unsafe { system::memory::unmap(mapped, 1 << 16) });
    drop((file, reader, writer));

    must!(set(limit::KERNEL_MEMORY, limit::INFINITY));
    drop(must!(pipe()));
    let after = counter(Counter::FramesFree)?;
    check!(after + 200 > before, "{before} frames were free, and {after} are");
    Ok(())
}

/// Calls in flight fail at the limit with `EBUSY`, and there is room again when they are done.
pub async fn calls_in_flight_have_a_limit() -> Outcome {
    let mut sleeping = 0;
    must!(set(limit::CALLS_IN_FLIGHT, 100));
    let time = abi_unix::types::TimeSpec { seconds: 1000, nanoseconds: 0 };
    let start = |token: u64| {
        // SAFETY: the kernel reads the time before it answers.
        let answer = unsafe {
            system::syscall_asynchronous(
                SystemCall::Sleep as usize,
                [&raw const time as usize, 0, 0, 0, 0, 0],
                0,
                63,
                token,
            )
        };
        if answer == abi_unix::WILL_BE_POSTED { Ok(0) } else { abi_unix::errno::decode(answer) }
    };
    let refused = loop {
        match start(1_000_000 + sleeping) {
            Ok(_) => sleeping += 1,
            Err(error) => break error,
        }
        check!(sleeping <= 100);
    };
    check_eq!(refused, Errno::EBUSY);
    check!(sleeping >= 90, "{sleeping} calls");
    must!(call(SystemCall::Cancel, [1_000_000, 0, 0, 0, 0, 0]));
    while start(2_000_000).is_err() {
        must!(system::system::sleep(SLEEP));
    }
    Ok(())
}

/// Starts a process that takes as much of a resource as it may, and keeps it.
async fn hoarder(kind: &str) -> Result<Child, alloc::string::String> {
    let (reader, writer) = must!(pipe());
    let output = must!(writer.descriptor().duplicate());
    drop(writer);
    let most = alloc::format!("{}", machine_memory()? / 100 * 8);
    let hoarder = Command::new(harness::OWN_PATH).argument("--act").argument(kind).argument(&most);
    let hoarder = must!(hoarder.descriptor(1, output).spawn());
    let ready = must!(cops::timeout(LIMIT, reader.read(alloc::vec![0; 16])).await.map_err(|_| "it is not ready"));
    check_eq!(ready.0, Ok(6));
    Ok(hoarder)
}

pub async fn four_hoarders_disturb_no_other_process() -> Outcome {
    // They have their own limits: this process, which bounds them together, has none.
    must!(set(limit::KERNEL_MEMORY, limit::INFINITY));
    must!(set(limit::FILE_MEMORY, limit::INFINITY));
    let mut hoarders = Vec::new();
    for kind in ["hoard-pipes-within", "hoard-calls-within", "hoard-pipes-within", "hoard-files-within"] {
        hoarders.push(hoarder(kind).await?);
    }
    for round in 0..200 {
        check_eq!(system::system::sleep(SLEEP), Ok(()));
        let (reader, writer) = must!(pipe());
        check_eq!(system::file::write(writer.descriptor().raw(), &[1; 5000]), Ok(5000));
        drop((reader, writer));
        if round % 40 == 0 {
            check_eq!(harness::ending_of_act("exit").await, Ok(Ending::Exited(0)));
        }
    }
    for hoarder in &hoarders {
        must!(hoarder.kill());
        check_eq!(harness::wait(hoarder).await, Some(Ok(Ending::Killed(9))));
    }
    Ok(())
}

/// A process that has a large file open is not killed instead of the one that has the memory.
pub async fn the_killer_cannot_be_aimed() -> Outcome {
    must!(set(limit::FILE_MEMORY, limit::INFINITY));
    let path = "/tmp/aimed";
    let file = must!(File::open_with(path, open::CREAT | open::WRONLY));
    let server = Command::new(harness::OWN_PATH).argument("--act").argument("read-and-sleep").argument(path);
    let server = must!(server.spawn());
    let bytes = machine_memory()? / 100 * 45;
    let mut written = 0;
    while written < bytes {
        written += must!(system::file::write(file.descriptor().raw(), &[1; 65536])) as u64;
    }
    drop(file);
    check_eq!(harness::ending_of_act("exhaust-memory").await, Ok(Ending::Killed(9)));
    // It is alive.
    check_eq!(system::process::kill(server.number(), 0), Ok(()));
    let (which, without_waiting) = (server.number() as usize, 1);
    check_eq!(call(SystemCall::Wait, [which, 0, without_waiting, 0, 0, 0]), Ok(0));
    must!(cops::file::remove(path));
    must!(server.kill());
    check_eq!(harness::wait(&server).await, Some(Ok(Ending::Killed(9))));
    Ok(())
}
