//! Long calls: the kernel checks in the middle of them whether its hart is wanted, and counts the checks.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU32;

use abi_unix::types::{TimeSpec, epoll, futex, mapping, open, protection};
use abi_unix::{Counter, SystemCall, WILL_BE_POSTED};
use cops::io::pipe;
use cops::process::Command;
use cops::system::kernel_side::{KernelSide, choose};
use cops::system::{self, scheduling, worker};
use cops::time::Duration;

use crate::harness::{LIMIT, OWN_PATH, Outcome, act, call, counter, reaches, returns_to, wait};
use crate::ring::{Raw, SMALL};
use crate::{check, check_eq, must};

const HERE: usize = -100i32 as usize;
const PATH: &core::ffi::CStr = c"/tmp/large";
/// Bytes of a file or a mapping.
const LARGE: usize = 24 << 20;
/// Largest number of bytes of a step.
const STEP: usize = 64 << 10;
/// Largest number of table entries in a step.
const ENTRIES: usize = 64;
const WAITERS: usize = 20_000;

/// Makes a call in which the kernel has to make this many checks. The process has a budget without end: the rest of its
/// work would be left for later when it is used up.
fn in_steps<T>(name: &str, looks: usize, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    must!(cops::system::scheduling::set_budget(0, None, 100_000_000));
    let before = counter(Counter::Looks)?;
    let result = work()?;
    let counted = counter(Counter::Looks)? - before;
    check!(counted >= looks as u64, "{name}: {counted} looks and not {looks}");
    Ok(result)
}

fn map(length: usize, flags: u32, file: usize) -> Result<usize, String> {
    let rights = (protection::READ | protection::WRITE) as usize;
    Ok(must!(call(SystemCall::Map, [0, length, rights, (mapping::PRIVATE | flags) as usize, file, 0])))
}

fn open_file() -> Result<usize, String> {
    let flags = (open::RDWR | open::CREAT) as usize;
    Ok(must!(call(SystemCall::Open, [HERE, PATH.as_ptr() as usize, flags, 0o600, 0, 0])))
}

pub async fn large_files_are_written_read_and_mapped_in_steps() -> Outcome {
    let area = map(LARGE, mapping::ANONYMOUS, 0)?;
    let file = open_file()?;
    in_steps("write", LARGE / STEP, || {
        check_eq!(call(SystemCall::Write, [file, area, LARGE, 0, 0, 0]), Ok(LARGE));
        Ok(())
    })?;
    in_steps("pread64", LARGE / STEP, || {
        check_eq!(call(SystemCall::ReadAt, [file, area, LARGE, 0, 0, 0]), Ok(LARGE));
        Ok(())
    })?;
    // All of it is right, and ends at the end of the file.
    for (place, word) in [(0, *b"first"), (LARGE / 2 - 2, *b"cross"), (LARGE - 5, *b"final")] {
        check_eq!(call(SystemCall::WriteAt, [file, word.as_ptr() as usize, 5, place, 0, 0]), Ok(5));
    }
    let mut copy = 0;
    in_steps("mmap", LARGE / STEP, || {
        copy = map(LARGE + 4096, 0, file)?;
        Ok(())
    })?;
    for (place, word) in [(0, *b"first"), (LARGE / 2 - 2, *b"cross"), (LARGE - 5, *b"final")] {
        // SAFETY: the mapping is that long, and is not written.
        check_eq!(unsafe { core::ptr::read_unaligned((copy + place) as *const [u8; 5]) }, word);
    }
    // SAFETY: as above.
    check_eq!(unsafe { core::ptr::read((copy + LARGE) as *const u8) }, 0);
    check_eq!(call(SystemCall::Unmap, [copy, LARGE + 4096, 0, 0, 0, 0]), Ok(0));
    check_eq!(call(SystemCall::Unmap, [area, LARGE, 0, 0, 0, 0]), Ok(0));
    // Removing the last name and then the last descriptor: all its memory is free when the call has returned.
    let before = counter(Counter::FramesFree)?;
    must!(call(SystemCall::Unlink, [HERE, PATH.as_ptr() as usize, 0, 0, 0, 0]));
    must!(call(SystemCall::Close, [file, 0, 0, 0, 0, 0]));
    let freed = counter(Counter::FramesFree)? - before;
    check!(freed as usize >= LARGE / 4096 - 512, "{freed} frames were freed");
    Ok(())
}

pub async fn parts_of_a_large_mapping_change_one_after_the_other() -> Outcome {
    let before = counter(Counter::FramesFree)?;
    let area = map(LARGE, mapping::ANONYMOUS, 0)?;
    let touch = |page: usize, value: u8| {
        // SAFETY: the page is mapped, and writable.
        unsafe { core::ptr::write_volatile((area + page * 4096) as *mut u8, value) }
    };
    let pages = LARGE / 4096;
    for page in 0..pages {
        touch(page, page as u8);
    }
    let protect =
        |start: usize, length: usize, rights: u32| call(SystemCall::Protect, [start, length, rights as usize, 0, 0, 0]);
    check_eq!(protect(area, LARGE, protection::READ), Ok(0));
    check_eq!(protect(area, LARGE, protection::READ | protection::WRITE), Ok(0));
    // In the middle of a region, from within it to its end, and over a hole.
    check_eq!(call(SystemCall::Unmap, [area + 1000 * 4096, 2000 * 4096, 0, 0, 0, 0]), Ok(0));
    check_eq!(call(SystemCall::Unmap, [area + 4000 * 4096, LARGE - 4000 * 4096, 0, 0, 0, 0]), Ok(0));
    for page in [0, 999, 3000, 3999] {
        // SAFETY: these were kept.
        check_eq!(unsafe { core::ptr::read_volatile((area + page * 4096) as *const u8) }, page as u8);
        touch(page, 1);
    }
    // Unmapped bytes cannot be read any more, even by the kernel.
    let file = open_file()?;
    for page in [1000, 2999, 4000, pages - 1] {
        let arguments = [file, area + page * 4096, 1, 0, 0, 0];
        check_eq!(call(SystemCall::Write, arguments), Err(cops::Errno::EFAULT));
    }
    check_eq!(protect(area, LARGE, protection::READ), Err(cops::Errno::ENOMEM));
    // Pages of zeros in place of all remaining pages.
    let fixed = (mapping::PRIVATE | mapping::ANONYMOUS | mapping::FIXED) as usize;
    let rights = (protection::READ | protection::WRITE) as usize;
    check_eq!(call(SystemCall::Map, [area, LARGE, rights, fixed, 0, 0]), Ok(area));
    for page in [0, 999, 1000, 3000, pages - 1] {
        // SAFETY: all of it is mapped again.
        check_eq!(unsafe { core::ptr::read_volatile((area + page * 4096) as *const u8) }, 0);
    }
    check_eq!(call(SystemCall::Unmap, [area, LARGE, 0, 0, 0, 0]), Ok(0));
    must!(call(SystemCall::Close, [file, 0, 0, 0, 0, 0]));
    must!(call(SystemCall::Unlink, [HERE, PATH.as_ptr() as usize, 0, 0, 0, 0]));
    let after = counter(Counter::FramesFree)?;
    check!(after + 256 >= before, "{before} frames were free, and {after} are");
    Ok(())
}

pub async fn a_large_directory_is_read_some_entries_at_a_time() -> Outcome {
    const NAMES: usize = 300;
    let directory = c"/tmp/many";
    must!(call(SystemCall::MakeDirectory, [HERE, directory.as_ptr() as usize, 0o700, 0, 0, 0]));
    let name = |number: usize| alloc::format!("/tmp/many/{number:04}\0");
    for number in 0..NAMES {
        let flags = (open::RDWR | open::CREAT) as usize;
        let file = must!(call(SystemCall::Open, [HERE, name(number).as_ptr() as usize, flags, 0o600, 0, 0]));
        close(file as u32)?;
    }
    let listed = must!(call(SystemCall::Open, [HERE, directory.as_ptr() as usize, open::RDONLY as usize, 0, 0, 0]));
    let mut bytes = vec![0u8; 64 << 10];
    let (mut names, mut calls) = (Vec::new(), 0);
    loop {
        let length =
            must!(call(SystemCall::ReadDirectory, [listed, bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0]));
        if length == 0 {
            break;
        }
        calls += 1;
        let mut at = 0;
        while at < length {
            let name = bytes[at + 19..].split(|&byte| byte == 0).next().unwrap_or_default();
            if name != b"." && name != b".." {
                names.push(String::from_utf8_lossy(name).into_owned());
            }
            at += usize::from(u16::from_le_bytes([bytes[at + 16], bytes[at + 17]]));
        }
    }
    // All of them would have fitted into one buffer.
    check!(calls > 2, "{calls} calls");
    check_eq!(names.len(), NAMES);
    check!(names.iter().enumerate().all(|(number, found)| *found == alloc::format!("{number:04}")));
    close(listed as u32)?;
    for number in 0..NAMES {
        must!(call(SystemCall::Unlink, [HERE, name(number).as_ptr() as usize, 0, 0, 0, 0]));
    }
    let remove = abi_unix::types::AT_REMOVEDIR as usize;
    must!(call(SystemCall::Unlink, [HERE, directory.as_ptr() as usize, remove, 0, 0, 0]));
    Ok(())
}

static WORD: AtomicU32 = AtomicU32::new(0);
static OTHER_WORD: AtomicU32 = AtomicU32::new(0);

/// Makes a call that continues by itself.
fn leave(which: SystemCall, arguments: [usize; 6]) -> Outcome {
    // SAFETY: the arguments are numbers, and addresses of words that live for ever.
    let answer = unsafe { system::syscall_asynchronous(which as usize, arguments, 0, 7, 0) };
    check_eq!(answer, WILL_BE_POSTED);
    Ok(())
}

pub async fn thousands_of_waiters_are_woken_and_moved_in_steps() -> Outcome {
    let before = counter(Counter::CallsInFlight)?;
    let (word, other) = (WORD.as_ptr() as usize, OTHER_WORD.as_ptr() as usize);
    for _ in 0..WAITERS {
        leave(SystemCall::Futex, [word, futex::WAIT as usize, 0, 0, 0, 0])?;
    }
    let most = i32::MAX as usize;
    // They begin to wait at their turns, so half of them are there at some time, and the others later.
    let mut moved = 0;
    while moved < WAITERS / 2 {
        cops::sleep(Duration::from_millis(10)).await;
        let more = WAITERS / 2 - moved;
        moved += must!(call(SystemCall::Futex, [word, futex::REQUEUE as usize, 0, more, other, 0]));
    }
    in_steps("futex", WAITERS / 2 / ENTRIES, || {
        check_eq!(call(SystemCall::Futex, [other, futex::WAKE as usize, most, 0, 0, 0]), Ok(WAITERS / 2));
        Ok(())
    })?;
    let mut woken = 0;
    while woken < WAITERS / 2 {
        cops::sleep(Duration::from_millis(10)).await;
        woken += must!(call(SystemCall::Futex, [word, futex::WAKE as usize, most, 0, 0, 0]));
    }
    check_eq!(woken, WAITERS / 2);
    returns_to(Counter::CallsInFlight, before).await
}

/// Pipes of the tests with many descriptors.
const PIPES: usize = 2000;

/// Makes many pipes; returns both ends of each, the reading one first.
fn pipes() -> Result<Vec<[u32; 2]>, String> {
    let mut all = Vec::new();
    for _ in 0..PIPES {
        let mut ends = [0; 2];
        must!(call(SystemCall::Pipe, [ends.as_mut_ptr() as usize, 0, 0, 0, 0, 0]));
        all.push(ends);
    }
    Ok(all)
}

fn close(descriptor: u32) -> Outcome {
    must!(call(SystemCall::Close, [descriptor as usize, 0, 0, 0, 0, 0]));
    Ok(())
}

fn write_to(descriptor: u32) -> Outcome {
    check_eq!(call(SystemCall::Write, [descriptor as usize, b"x".as_ptr() as usize, 1, 0, 0, 0]), Ok(1));
    Ok(())
}

/// A `ppoll` list for input, with the result of each of its entries.
struct List(Vec<[u32; 2]>);

impl List {
    fn of(descriptors: impl Iterator<Item = u32>) -> List {
        List(descriptors.map(|descriptor| [descriptor, epoll::IN]).collect())
    }

    fn poll(&mut self, limit: Option<[i64; 2]>) -> Result<usize, cops::Errno> {
        let limit = limit.as_ref().map_or(0, |limit| limit.as_ptr() as usize);
        call(SystemCall::Poll, [self.0.as_mut_ptr() as usize, self.0.len(), limit, 0, 0, 0])
    }

    /// Returns the descriptors with a result.
    fn found(&self) -> Vec<u32> {
        self.0.iter().filter(|entry| entry[1] >> 16 != 0).map(|entry| entry[0]).collect()
    }
}

/// Waits in a `ppoll` of many pipes that are never written to.
pub async fn poll_many() -> i32 {
    let Ok(pipes) = pipes() else { return 1 };
    let mut list = List::of(pipes.iter().map(|ends| ends[0]));
    let _ = system::file::write(1, b".");
    i32::from(list.poll(None).is_ok())
}

pub async fn thousands_of_descriptors_are_polled_in_steps() -> Outcome {
    let pipes = pipes()?;
    let mut list = List::of(pipes.iter().map(|ends| ends[0]));
    let now = Some([0, 0]);
    check_eq!(in_steps("ppoll", PIPES / 100, || Ok(list.poll(now)))?, Ok(0));
    // The first, the last and one at the end of a step.
    let written = [pipes[0], pipes[31], pipes[32], pipes[PIPES - 1]];
    for ends in written {
        write_to(ends[1])?;
    }
    check_eq!(list.poll(now), Ok(4));
    check_eq!(list.found(), written.map(|ends| ends[0]));
    check_eq!(list.poll(None), Ok(4));
    for ends in written {
        check_eq!(call(SystemCall::Read, [ends[0] as usize, [0u8; 4].as_mut_ptr() as usize, 4, 0, 0, 0]), Ok(1));
    }
    // A closed descriptor and a negative one, far behind.
    close(pipes[1500][0])?;
    list.0[1700][0] = u32::MAX;
    check_eq!(list.poll(now), Ok(1));
    check_eq!(list.found(), [pipes[1500][0]]);
    list.0[1500][0] = u32::MAX;
    // A time limit that passes; after it no waker is registered.
    check_eq!(in_steps("ppoll", PIPES / 50, || Ok(list.poll(Some([0, 20_000_000]))))?, Ok(0));
    // An address range that ends within the list.
    let area = map(2 * 4096, mapping::ANONYMOUS, 0)?;
    check_eq!(call(SystemCall::Unmap, [area + 4096, 4096, 0, 0, 0, 0]), Ok(0));
    let begin = area + 4096 - 300 * 8;
    check_eq!(call(SystemCall::Poll, [begin, PIPES, 0, 0, 0, 0]), Err(cops::Errno::EFAULT));
    for (number, ends) in pipes.iter().enumerate() {
        if number != 1500 {
            close(ends[0])?;
        }
        close(ends[1])?;
    }
    Ok(())
}

pub async fn a_process_that_polls_thousands_of_descriptors_can_be_killed() -> Outcome {
    let before = counter(Counter::HeapBytes)?;
    // Killed both while it waits and at other points of the call.
    for delay in [0, 1, 2, 3, 30] {
        let (reader, writer) = must!(pipe());
        let command = Command::new(OWN_PATH).argument("--act").argument("poll-many");
        let child = must!(command.descriptor(1, writer.into_descriptor()).spawn());
        must!(must!(cops::timeout(LIMIT, reader.read(vec![0; 1])).await).0);
        cops::sleep(Duration::from_millis(delay)).await;
        must!(child.kill());
        check!(wait(&child).await.is_some());
    }
    // No registration and no pipe is left.
    returns_to(Counter::HeapBytes, before + (64 << 10)).await
}

pub async fn an_epoll_with_thousands_of_items_is_asked_and_closed_in_steps() -> Outcome {
    let pipes = pipes()?;
    let waiting = must!(call(SystemCall::EpollCreate, [0; 6]));
    let add = |descriptor: u32, events: u32| {
        let bytes = epoll::Event { events, data: descriptor.into() }.to_bytes();
        let arguments = [waiting, epoll::CTL_ADD as usize, descriptor as usize, bytes.as_ptr() as usize, 0, 0];
        must!(call(SystemCall::EpollControl, arguments));
        Ok::<(), String>(())
    };
    for ends in &pipes {
        add(ends[0], epoll::IN)?;
        add(ends[1], epoll::OUT)?;
    }
    let mut bytes = vec![0u8; 2 * PIPES * epoll::Event::SIZE];
    let mut ask = || call(SystemCall::EpollWait, [waiting, bytes.as_mut_ptr() as usize, 2 * PIPES, 0, 0, 0]);
    // All writing ends are ready. Each call reports some, and all are reported in turn.
    let mut reported = 0;
    while reported < PIPES {
        let some = must!(ask());
        check!(some > 0 && some < PIPES, "{some} events in one call");
        reported += some;
    }
    // Removed entries are still in the list of those that may be ready, and cost only a skip.
    for ends in &pipes {
        let remove = epoll::CTL_DEL as usize;
        must!(call(SystemCall::EpollControl, [waiting, remove, ends[1] as usize, 0, 0, 0]));
    }
    check_eq!(in_steps("epoll_pwait", PIPES / 100, || Ok(ask()))?, Ok(0));
    write_to(pipes[PIPES - 1][1])?;
    check_eq!(ask(), Ok(1));
    in_steps("close", PIPES / 50, || {
        must!(call(SystemCall::Close, [waiting, 0, 0, 0, 0, 0]));
        Ok(())
    })?;
    for ends in &pipes {
        close(ends[0])?;
        close(ends[1])?;
    }
    Ok(())
}

pub async fn one_file_watched_thousands_of_times_is_closed_in_steps() -> Outcome {
    const COPIES: usize = 4000;
    let mut ends = [0u32; 2];
    must!(call(SystemCall::Pipe, [ends.as_mut_ptr() as usize, 0, 0, 0, 0, 0]));
    let create = || call(SystemCall::EpollCreate, [0; 6]);
    let (first, second) = (must!(create()), must!(create()));
    let add = |waiting: usize, descriptor: u32| {
        let bytes = epoll::Event { events: epoll::IN, data: descriptor.into() }.to_bytes();
        let arguments = [waiting, epoll::CTL_ADD as usize, descriptor as usize, bytes.as_ptr() as usize, 0, 0];
        must!(call(SystemCall::EpollControl, arguments));
        Ok::<(), String>(())
    };
    let mut copies = vec![ends[0]];
    for _ in 1..COPIES {
        copies.push(must!(call(SystemCall::Duplicate, [ends[0] as usize, 0, 0, 0, 0, 0])) as u32);
    }
    for &copy in &copies {
        add(first, copy)?;
        add(second, copy)?;
    }
    in_steps("close of an epoll", COPIES / ENTRIES, || {
        must!(call(SystemCall::Close, [first, 0, 0, 0, 0, 0]));
        Ok(())
    })?;
    for &copy in &copies[1..] {
        close(copy)?;
    }
    in_steps("close of a file", COPIES / ENTRIES, || close(copies[0]))?;
    // No item is left: the same numbers are free for other files, and nothing is reported for the old one.
    close(ends[1])?;
    let mut bytes = vec![0u8; 2 * epoll::Event::SIZE];
    let mut ask = || call(SystemCall::EpollWait, [second, bytes.as_mut_ptr() as usize, 2, 0, 0, 0]);
    check_eq!(ask(), Ok(0));
    must!(call(SystemCall::Pipe, [ends.as_mut_ptr() as usize, 0, 0, 0, 0, 0]));
    check_eq!(ends[0], copies[0]);
    add(second, ends[0])?;
    write_to(ends[1])?;
    check_eq!(ask(), Ok(1));
    for descriptor in [ends[0], ends[1], second as u32] {
        close(descriptor)?;
    }
    Ok(())
}

/// Each request moves fewer bytes than a step, so none is put aside; all of them together are long.
pub async fn a_full_ring_is_taken_in_steps() -> Outcome {
    const ROUNDS: usize = 10;
    const BYTES: usize = 6 << 10;
    let area = map(SMALL * BYTES, mapping::ANONYMOUS, 0)?;
    let file = open_file()?;
    let mut raw = must!(Raw::new());
    let fill = |raw: &mut Raw| {
        for number in 0..SMALL {
            let arguments = [file, area + number * BYTES, BYTES, number * BYTES];
            check!(raw.submit(SystemCall::WriteAt, number as u64, &arguments).is_ok());
        }
        Ok(())
    };
    let empty = |raw: &mut Raw| {
        for number in 0..SMALL {
            let done = raw.wait()?;
            check_eq!((done.token, done.result), (number as u64, BYTES as u64));
        }
        Ok(())
    };
    // A batch ends after a time, so that the number of looks depends on the machine's speed: one for each round is what
    // the slowest and the fastest have. An interrupt may leave some rounds to the ring's handler, after which the
    // executor looks.
    in_steps("ring_enter", ROUNDS, || {
        for _ in 0..ROUNDS {
            fill(&mut raw)?;
            must!(worker::ring_enter(0, 0));
            empty(&mut raw)?;
        }
        Ok(())
    })?;
    // A call for this token could be in the ring, so all of it is taken first.
    in_steps("cancel", ROUNDS, || {
        for _ in 0..ROUNDS {
            fill(&mut raw)?;
            check_eq!(call(SystemCall::Cancel, [99, 0, 0, 0, 0, 0]), Err(cops::Errno::ENOENT));
            for number in 0..SMALL as u64 {
                let done = raw.take().map(|done| (done.token, done.result));
                check_eq!(done, Some((number, BYTES as u64)));
            }
        }
        Ok(())
    })?;
    must!(call(SystemCall::Close, [file, 0, 0, 0, 0, 0]));
    must!(call(SystemCall::Unlink, [HERE, PATH.as_ptr() as usize, 0, 0, 0, 0]));
    Ok(())
}

/// Waits for a child that never ends, thousands of times.
pub async fn wait_often() -> i32 {
    let Ok(child) = act("sleep") else { return 1 };
    for _ in 0..3 * WAITERS {
        if leave(SystemCall::Wait, [child.number() as usize, 0, 0, 0, 0, 0]).is_err() {
            return 2;
        }
    }
    cops::sleep(Duration::from_secs(1000)).await;
    3
}

/// Reads that wait at one pipe together.
const READERS: usize = 2000;

/// Thousands wait at one pipe: a byte and then its end wake all of them, in portions. All have their results.
pub async fn thousands_of_waiters_at_one_pipe_are_woken_in_portions() -> Outcome {
    static mut BYTE: u8 = 0;
    let mut ends = [0u32; 2];
    must!(call(SystemCall::Pipe, [ends.as_mut_ptr() as usize, 0, 0, 0, 0, 0]));
    let target = (&raw mut BYTE) as usize;
    for _ in 0..READERS {
        let arguments = [ends[0] as usize, target, 1, 0, 0, 0];
        // SAFETY: the byte lives for ever, and is not read.
        let result = unsafe { system::raw::syscall_asynchronous(SystemCall::Read as usize, arguments, 0, 7, 0) };
        check_eq!(result, WILL_BE_POSTED);
    }
    let before = counter(Counter::Completions)?;
    let looks = counter(Counter::Looks)?;
    write_to(ends[1])?;
    reaches(Counter::Completions, before + 1).await?;
    close(ends[1])?;
    reaches(Counter::Completions, before + READERS as u64).await?;
    close(ends[0])?;
    let looked = counter(Counter::Looks)? - looks;
    check!(looked >= (READERS / ENTRIES) as u64, "{looked} looks while {READERS} were woken");
    Ok(())
}

/// A polling thread with thousands of transfers looks in the middle of its turns: interrupts and more important work
/// need not wait until it has tried all.
pub async fn a_polling_thread_tries_thousands_of_transfers_in_steps() -> Outcome {
    const TURNS: usize = 3;
    static mut BYTE: u8 = 0;
    let mut ends = [0u32; 2];
    must!(call(SystemCall::Pipe, [ends.as_mut_ptr() as usize, 0, 0, 0, 0, 0]));
    // Sleeps, with which this test waits, are no transfers, and hardly a look comes with one.
    let looks = counter(Counter::Looks)?;
    for _ in 0..TURNS * READERS / ENTRIES {
        must!(system::system::sleep(TimeSpec::from_ns(1_000_000)));
    }
    let looks = counter(Counter::Looks)? - looks;
    check!(looks < (TURNS * READERS / ENTRIES / 2) as u64, "{looks} looks without transfers");
    must!(choose(KernelSide::PollingThread));
    let completions = counter(Counter::Completions)?;
    for _ in 0..READERS {
        leave(SystemCall::Read, [ends[0] as usize, (&raw mut BYTE) as usize, 1, 0, 0, 0])?;
    }
    // Only the polling thread works, and each of its turns is through all reads.
    let looks = counter(Counter::Looks)?;
    reaches(Counter::Looks, looks + (TURNS * READERS / ENTRIES) as u64).await?;
    close(ends[1])?;
    reaches(Counter::Completions, completions + READERS as u64).await?;
    close(ends[0])
}

pub async fn children_of_others_wake_no_waiter() -> Outcome {
    let before = counter(Counter::CallsInFlight)?;
    let other = must!(act("wait-often"));
    reaches(Counter::CallsInFlight, before + 3 * WAITERS as u64).await?;
    // All its calls have begun to wait when its processor time stays constant.
    let mut used = 0;
    loop {
        let now = must!(scheduling::get(other.number())).cpu_ns;
        if core::mem::replace(&mut used, now) == now {
            break;
        }
        cops::sleep(Duration::from_millis(100)).await;
    }
    for _ in 0..5 {
        let child = must!(act("return"));
        check!(wait(&child).await.is_some());
    }
    // If its calls had been woken each time, that would have been charged to it, five times the cost of their first
    // turns. It does pay for the watchdog's check of them.
    let more = must!(scheduling::get(other.number())).cpu_ns - used;
    check!(more < used / 4, "{more} ns, and {used} before");
    must!(other.kill());
    check!(wait(&other).await.is_some());
    // A parent that knows of the end finds no resource of the child in use; the remaining calls are this program's.
    check!(counter(Counter::CallsInFlight)? <= before + 4);
    // The grandchild is below this process now, and is killed with all descendants.
    let _ = call(SystemCall::Kill, [usize::MAX, abi_unix::types::signal::KILL as usize, 0, 0, 0, 0]);
    Ok(())
}

pub async fn a_parent_hears_of_its_own_children_only() -> Outcome {
    // By any, by number and by group; waiters for processes that are gone get an error.
    let (first, second) = (must!(act("sleep")), must!(act("sleep")));
    let group = first.number() as usize;
    must!(call(SystemCall::SetProcessGroup, [group, 0, 0, 0, 0, 0]));
    let of_group = (group as i32).wrapping_neg() as usize;
    let no_wait = abi_unix::types::WNOHANG as usize;
    for which in [usize::MAX, group, of_group, second.number() as usize] {
        check_eq!(call(SystemCall::Wait, [which, 0, no_wait, 0, 0, 0]), Ok(0));
    }
    must!(first.kill());
    check_eq!(call(SystemCall::Wait, [of_group, 0, 0, 0, 0, 0]), Ok(group));
    for gone in [group, of_group] {
        check_eq!(call(SystemCall::Wait, [gone, 0, no_wait, 0, 0, 0]), Err(cops::Errno::ECHILD));
    }
    // A process cannot enter the group of no process; it can enter one of its own, and is found there.
    must!(call(SystemCall::SetProcessGroup, [second.number() as usize, 0, 0, 0, 0, 0]));
    must!(second.kill());
    let of_group = (second.number() as i32).wrapping_neg() as usize;
    check_eq!(call(SystemCall::Wait, [of_group, 0, 0, 0, 0, 0]), Ok(second.number() as usize));
    check_eq!(call(SystemCall::Wait, [usize::MAX, 0, no_wait, 0, 0, 0]), Err(cops::Errno::ECHILD));
    Ok(())
}

pub async fn untaken_console_lines_delay_no_process() -> Outcome {
    // Far more than the console's ring holds. Bytes without room are dropped, and the call returns the length that it
    // was given.
    let line = "a line that is printed much too often, and as long as a line may be, ".repeat(4);
    for _ in 0..100 {
        must!(system::system::log(&line));
    }
    Ok(())
}
