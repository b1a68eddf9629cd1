//! Every call whose work can be long, at its largest: the longest time for which the kernel does not look for
//! interrupts.
//!
//! The kernel measures that itself, for each call. Each drive makes one or a few calls as long as they can be, on an
//! otherwise idle machine; in the end the kernel reports its measurements.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU32;

use abi_queue::{Request, request};
use abi_unix::trace::stretch::{self, CAUSES, STRETCH_WORDS};
use abi_unix::trace::subject;
use abi_unix::types::{
    self, MessageHeader, SocketAddress, control, epoll, futex, mapping, message, open, protection, socket_option,
};
use abi_unix::{Errno, SystemCall, WILL_BE_POSTED, errno};
use cops::process::Ending;
use cops::system::raw::asynchronous_number;
use cops::system::{self, file, syscall, syscall_asynchronous};

use crate::{Outcome, attempt, figure};

use super::accomplice;
use super::attack::requests;

/// Bytes of files and mappings: some hundred steps.
const LARGE: usize = 24 << 20;
/// Bytes of a page.
const PAGE: usize = 4096;
/// Waiters and calls in flight.
const MANY: usize = 20_000;
/// Files: as many as fill segments of inodes up to the tenth.
const INODES: usize = 33_000;
/// Number of descriptors; a process may have this many.
const DESCRIPTORS: usize = 16_000;
/// Entries of a request ring, as many as it can have.
const REQUESTS: usize = request::LARGEST_CAPACITY;

type Result<T> = core::result::Result<T, Errno>;

/// Makes a call directly.
fn call(call: SystemCall, arguments: [usize; 6]) -> Result<usize> {
    // SAFETY: the drives pass addresses of their own buffers, which outlive the calls.
    errno::decode(unsafe { syscall(call as usize, arguments) })
}

/// Makes a call that continues by itself, and whose completion is never taken.
fn leave(call: SystemCall, arguments: [usize; 6]) -> Result<()> {
    // SAFETY: the arguments are numbers, and addresses of words that live for ever.
    match unsafe { syscall_asynchronous(call as usize, arguments, 0, 7, 0) } {
        WILL_BE_POSTED => Ok(()),
        result => errno::decode(result).map(drop),
    }
}

fn path(text: &'static core::ffi::CStr) -> usize {
    text.as_ptr() as usize
}

const HERE: usize = -100i32 as usize;
const FILE: &core::ffi::CStr = c"/large";

fn open(name: &'static core::ffi::CStr, flags: u32) -> Result<usize> {
    call(SystemCall::Open, [HERE, path(name), flags as usize, 0o600, 0, 0])
}

fn map(length: usize, flags: u32, file: usize) -> Result<usize> {
    let protection = (protection::READ | protection::WRITE) as usize;
    call(SystemCall::Map, [0, length, protection, (mapping::PRIVATE | flags) as usize, file, 0])
}

/// Reads, writes, maps, protects, unmaps and truncates a large file.
fn files_and_memory() -> Result<()> {
    let area = map(LARGE, mapping::ANONYMOUS, 0)?;
    let file = open(FILE, open::RDWR | open::CREAT)?;
    // Pages are made at the first touch, here by the kernel.
    call(SystemCall::GetRandom, [area, 1 << 20, 0, 0, 0, 0])?;
    expect(call(SystemCall::Write, [file, area, LARGE, 0, 0, 0])?, LARGE)?;
    call(SystemCall::Seek, [file, 0, 0, 0, 0, 0])?;
    expect(call(SystemCall::Read, [file, area, LARGE, 0, 0, 0])?, LARGE)?;
    expect(call(SystemCall::WriteAt, [file, area, LARGE / 4, 4096 + 7, 0, 0])?, LARGE / 4)?;
    expect(call(SystemCall::ReadAt, [file, area, LARGE / 4, 4096 + 7, 0, 0])?, LARGE / 4)?;
    call(SystemCall::Protect, [area, LARGE, protection::READ as usize, 0, 0, 0])?;
    let copy = map(LARGE, 0, file)?;
    // In place of the present mapping.
    let fixed = (mapping::PRIVATE | mapping::ANONYMOUS | mapping::FIXED) as usize;
    call(SystemCall::Map, [area, LARGE, protection::READ as usize, fixed, 0, 0])?;
    call(SystemCall::Unmap, [copy, LARGE, 0, 0, 0, 0])?;
    call(SystemCall::Unmap, [area, LARGE, 0, 0, 0, 0])?;
    let end = call(SystemCall::Break, [0; 6])?;
    call(SystemCall::Break, [end + LARGE, 0, 0, 0, 0, 0])?;
    call(SystemCall::Seek, [file, 0, 0, 0, 0, 0])?;
    expect(call(SystemCall::Read, [file, end, LARGE, 0, 0, 0])?, LARGE)?;
    call(SystemCall::Break, [end, 0, 0, 0, 0, 0])?;
    call(SystemCall::Truncate, [file, 1, 0, 0, 0, 0])?;
    call(SystemCall::Close, [file, 0, 0, 0, 0, 0])?;
    Ok(())
}

/// Shares the pages of a large file, and others without one, between two mappings: filled by the kernel and by the
/// program, written back, taken away, cut off while they are mapped.
fn shared_mappings() -> Result<()> {
    let file = open(FILE, open::RDWR | open::CREAT)?;
    call(SystemCall::Truncate, [file, LARGE, 0, 0, 0, 0])?;
    let share = |flags: u32, file: usize| {
        let protection = (protection::READ | protection::WRITE) as usize;
        call(SystemCall::Map, [0, LARGE, protection, (mapping::SHARED | flags) as usize, file, 0])
    };
    for (flags, descriptor) in [(0, file), (mapping::ANONYMOUS, 0)] {
        let area = share(flags, descriptor)?;
        call(SystemCall::GetRandom, [area, 1 << 20, 0, 0, 0, 0])?;
        for page in (area + LARGE / 2..area + LARGE).step_by(4096) {
            // SAFETY: the pages were mapped above, for this function alone.
            unsafe { core::ptr::with_exposed_provenance_mut::<u8>(page).write_volatile(1) };
        }
        let other = if flags == 0 { share(0, file)? } else { map(LARGE, mapping::ANONYMOUS, 0)? };
        call(SystemCall::SynchroniseMemory, [area, LARGE, 4, 0, 0, 0])?;
        call(SystemCall::Protect, [other, LARGE, protection::READ as usize, 0, 0, 0])?;
        // MADV_DONTNEED
        call(SystemCall::AdviseMemory, [area, LARGE, 4, 0, 0, 0])?;
        if flags == 0 {
            expect(call(SystemCall::ReadAt, [file, area, LARGE / 4, 0, 0, 0])?, LARGE / 4)?;
            expect(call(SystemCall::WriteAt, [file, other, LARGE / 4, 7, 0, 0])?, LARGE / 4)?;
            call(SystemCall::Truncate, [file, 1, 0, 0, 0, 0])?;
        }
        call(SystemCall::Unmap, [other, LARGE / 2, 0, 0, 0, 0])?;
        call(SystemCall::Unmap, [other + LARGE / 2, LARGE / 2, 0, 0, 0, 0])?;
        call(SystemCall::Unmap, [area, LARGE, 0, 0, 0, 0])?;
    }
    call(SystemCall::Close, [file, 0, 0, 0, 0, 0])?;
    call(SystemCall::Unlink, [HERE, path(FILE), 0, 0, 0, 0]).map(drop)
}

/// Changes memory of thousands of regions: stacks with guards one below the other, and one area that is cut into pages
/// with other rights, has holes, is made one region again, and goes.
fn regions() -> Result<()> {
    const STACKS: usize = 4_000;
    let protect = |address: usize, length: usize, rights: u32| {
        call(SystemCall::Protect, [address, length, rights as usize, 0, 0, 0]).map(drop)
    };
    let unmap = |address: usize, length: usize| call(SystemCall::Unmap, [address, length, 0, 0, 0, 0]).map(drop);
    let mut stacks = Vec::new();
    for _ in 0..STACKS {
        let stack = map(2 * PAGE, mapping::ANONYMOUS, 0)?;
        protect(stack, PAGE, 0)?;
        stacks.push(stack);
    }
    // Holes that are too small for others, which are filled then.
    let holes = || stacks.iter().skip(STACKS / 3).step_by(5);
    for &stack in holes() {
        unmap(stack, 2 * PAGE)?;
    }
    let large = map(3 * PAGE, mapping::ANONYMOUS, 0)?;
    unmap(large, 3 * PAGE)?;
    let filled = holes().map(|_| map(2 * PAGE, mapping::ANONYMOUS, 0)).collect::<Result<Vec<_>>>()?;
    for stack in filled.into_iter().chain(stacks.iter().copied()) {
        unmap(stack, 2 * PAGE)?;
    }
    let length = 2 * STACKS * PAGE;
    let area = map(length, mapping::ANONYMOUS, 0)?;
    let fixed = (mapping::PRIVATE | mapping::ANONYMOUS | mapping::FIXED) as usize;
    for page in (area..area + length).step_by(2 * PAGE) {
        protect(page, PAGE, protection::READ)?;
    }
    for page in (area..area + length).step_by(64 * PAGE) {
        unmap(page + PAGE, PAGE)?;
        call(SystemCall::Map, [page + PAGE, PAGE, 0, fixed, 0, 0])?;
    }
    protect(area, length, protection::READ | protection::WRITE)?;
    for page in (area..area + length).step_by(2 * PAGE) {
        call(SystemCall::Map, [page, PAGE, protection::READ as usize, fixed, 0, 0])?;
    }
    call(SystemCall::Map, [area, length, 0, fixed, 0, 0])?;
    unmap(area, length)
}

/// Moves large mappings with few pages and with many, and touches the last page of a very large common one.
fn remapping() -> Result<()> {
    const VERY_LARGE: usize = 16 << 30;
    let remap = |from: usize, length: usize, new_length: usize| {
        call(SystemCall::Remap, [from, length, new_length, types::remapping::MAY_MOVE as usize, 0, 0])
    };
    let touch = |address: usize| {
        // SAFETY: the page was mapped by this function, for itself alone.
        unsafe { core::ptr::with_exposed_provenance_mut::<u8>(address).write_volatile(1) };
    };
    for (length, step) in [(VERY_LARGE, VERY_LARGE / 4), (LARGE, 3 * PAGE)] {
        let area = map(length, mapping::ANONYMOUS, 0)?;
        (area..area + length).step_by(step).for_each(touch);
        // There is no room behind it.
        let moved = remap(area, length, length + PAGE)?;
        call(SystemCall::Unmap, [moved, length + PAGE, 0, 0, 0, 0])?;
    }
    let rights = (protection::READ | protection::WRITE) as usize;
    let common = (mapping::SHARED | mapping::ANONYMOUS) as usize;
    let area = call(SystemCall::Map, [0, VERY_LARGE, rights, common, 0, 0])?;
    touch(area + VERY_LARGE - PAGE);
    touch(area);
    touch(area + VERY_LARGE / 2);
    call(SystemCall::Unmap, [area, VERY_LARGE, 0, 0, 0, 0]).map(drop)
}

/// Removes large files: by name, by their last descriptor, and by replacement.
fn removing() -> Result<()> {
    let area = map(LARGE, mapping::ANONYMOUS, 0)?;
    for how in 0..4 {
        let file = open(FILE, open::RDWR | open::CREAT)?;
        expect(call(SystemCall::Write, [file, area, LARGE, 0, 0, 0])?, LARGE)?;
        match how {
            0 => drop(
                open(FILE, open::RDWR | open::TRUNC).and_then(|file| call(SystemCall::Close, [file, 0, 0, 0, 0, 0]))?,
            ),
            1 => {
                let other = open(c"/other", open::RDWR | open::CREAT)?;
                call(SystemCall::Close, [other, 0, 0, 0, 0, 0])?;
                call(SystemCall::Rename, [HERE, path(c"/other"), HERE, path(FILE), 0, 0])?;
            }
            2 => drop(call(SystemCall::Unlink, [HERE, path(FILE), 0, 0, 0, 0])?),
            _ => {}
        }
        call(SystemCall::Close, [file, 0, 0, 0, 0, 0])?;
        if how == 3 {
            call(SystemCall::Unlink, [HERE, path(FILE), 0, 0, 0, 0])?;
        }
    }
    call(SystemCall::Unmap, [area, LARGE, 0, 0, 0, 0]).map(drop)
}

/// Makes and removes a directory with many entries.
fn directories() -> Result<()> {
    call(SystemCall::MakeDirectory, [HERE, path(c"/many"), 0o700, 0, 0, 0])?;
    for number in 0..1000 {
        let name = alloc::format!("/many/an-entry-with-a-name-{number:04}\0");
        let file =
            call(SystemCall::Open, [HERE, name.as_ptr() as usize, (open::CREAT | open::RDWR) as usize, 0o600, 0, 0])?;
        call(SystemCall::Close, [file, 0, 0, 0, 0, 0])?;
    }
    let directory = open(c"/many", open::RDONLY)?;
    let mut entries = vec![0u8; 256 << 10];
    while call(SystemCall::ReadDirectory, [directory, entries.as_mut_ptr() as usize, entries.len(), 0, 0, 0])? > 0 {}
    call(SystemCall::Close, [directory, 0, 0, 0, 0, 0]).map(drop)
}

/// Changes a file that as many queues watch as may, removes it, and closes queues with thousands of watches and events.
fn file_events() -> Result<()> {
    let queues = (0..24).map(|_| call(SystemCall::EventFile, [open::NONBLOCK as usize, 0, 0, 0, 0, 0]));
    let queues = queues.collect::<Result<alloc::vec::Vec<_>>>()?;
    let file = open(c"/watched", open::RDWR | open::CREAT)?;
    for &queue in &queues {
        for path in [path(c"/watched"), path(c"/")] {
            call(SystemCall::WatchFile, [queue, path, types::file_event::ALL as usize, 0, 0, 0])?;
        }
    }
    let byte = [0u8; 8];
    for _ in 0..40 {
        call(SystemCall::Write, [file, byte.as_ptr() as usize, 8, 0, 0, 0])?;
        call(SystemCall::Read, [file, byte.as_ptr() as usize, 8, 0, 0, 0])?;
        call(SystemCall::Seek, [file, 0, 0, 0, 0, 0])?;
        call(SystemCall::Read, [file, byte.as_ptr() as usize, 8, 0, 0, 0])?;
    }
    let mut events = vec![0u8; 64 << 10];
    for &queue in &queues[..12] {
        while call(SystemCall::Read, [queue, events.as_mut_ptr() as usize, events.len(), 0, 0, 0]).is_ok() {}
    }
    call(SystemCall::Unlink, [HERE, path(c"/watched"), 0, 0, 0, 0])?;
    call(SystemCall::Close, [file, 0, 0, 0, 0, 0])?;
    call(SystemCall::MakeDirectory, [HERE, path(c"/watches"), 0o700, 0, 0, 0])?;
    let name = |number: usize| alloc::format!("/watches/{number}\0");
    for number in 0..1000 {
        let name = name(number);
        call(SystemCall::MakeDirectory, [HERE, name.as_ptr() as usize, 0o700, 0, 0, 0])?;
        call(SystemCall::WatchFile, [queues[0], name.as_ptr() as usize, 0x100, 0, 0, 0])?;
    }
    for queue in queues {
        call(SystemCall::Close, [queue, 0, 0, 0, 0, 0])?;
    }
    for number in 0..1000 {
        call(SystemCall::Unlink, [HERE, name(number).as_ptr() as usize, types::AT_REMOVEDIR as usize, 0, 0, 0])?;
    }
    call(SystemCall::Unlink, [HERE, path(c"/watches"), types::AT_REMOVEDIR as usize, 0, 0, 0]).map(drop)
}

/// Sends echo requests of all lengths to as many raw sockets as there may be, which receive requests and answers.
fn raw_sockets() -> Result<()> {
    let kind = types::SOCK_RAW | types::SOCK_NONBLOCK;
    let make = || call(SystemCall::Socket, [types::AF_INET as usize, kind as usize, 1, 0, 0, 0]);
    let sockets = (0..16).map(|_| make()).collect::<Result<alloc::vec::Vec<_>>>()?;
    let to = SocketAddress { address: [127, 0, 0, 1], port: 0 }.to_bytes();
    let mut packet = vec![0u8; 60_000];
    packet[0] = 8;
    for length in [8, 700, 1480, 2000, 8000, packet.len()] {
        for _ in 0..4 {
            call(
                SystemCall::SendTo,
                [sockets[0], packet.as_ptr() as usize, length, 0, to.as_ptr() as usize, to.len()],
            )?;
        }
        for &socket in &sockets {
            while call(SystemCall::Read, [socket, packet.as_mut_ptr() as usize, packet.len(), 0, 0, 0]).is_ok() {}
        }
        packet.fill(0);
        packet[0] = 8;
    }
    sockets.into_iter().try_for_each(|socket| call(SystemCall::Close, [socket, 0, 0, 0, 0, 0]).map(drop))
}

/// Makes so many files that the table of inodes grows by one of its larger segments.
fn inodes() -> Result<()> {
    call(SystemCall::MakeDirectory, [HERE, path(c"/inodes"), 0o700, 0, 0, 0])?;
    let name = |number: usize| alloc::format!("/inodes/{number}\0");
    for number in 0..INODES {
        let name = name(number);
        let flags = (open::CREAT | open::RDWR) as usize;
        let file = call(SystemCall::Open, [HERE, name.as_ptr() as usize, flags, 0o600, 0, 0])?;
        call(SystemCall::Close, [file, 0, 0, 0, 0, 0])?;
    }
    for number in 0..INODES {
        call(SystemCall::Unlink, [HERE, name(number).as_ptr() as usize, 0, 0, 0, 0])?;
    }
    Ok(())
}

static WORD: AtomicU32 = AtomicU32::new(0);
static OTHER_WORD: AtomicU32 = AtomicU32::new(0);

fn futexes(command: u32, most: usize, moves: usize) -> Result<usize> {
    let (word, other) = (WORD.as_ptr() as usize, OTHER_WORD.as_ptr() as usize);
    call(SystemCall::Futex, [word, command as usize, most, moves, other, 0])
}

/// Makes thousands of waiters at a word, moves and wakes them.
async fn waiters() -> Result<()> {
    for _ in 0..MANY {
        leave(SystemCall::Futex, [WORD.as_ptr() as usize, futex::WAIT as usize, 0, 0, 0, 0])?;
    }
    settle().await;
    expect(futexes(futex::REQUEUE, 0, MANY / 2)?, MANY / 2)?;
    expect(futexes(futex::WAKE, i32::MAX as usize, 0)?, MANY / 2)?;
    let other = OTHER_WORD.as_ptr() as usize;
    expect(call(SystemCall::Futex, [other, futex::WAKE as usize, i32::MAX as usize, 0, 0, 0])?, MANY / 2)?;
    settle().await;
    Ok(())
}

/// Gives calls time to wait, or woken ones time to end.
async fn settle() {
    cops::sleep(cops::time::Duration::from_millis(100)).await;
}

/// Makes thousands of waiters for children, and thousands of timers that are due at once.
async fn waiting_for_children_and_times() -> Outcome {
    let child = attempt!(accomplice("longest_stretch").argument("sleep").spawn());
    for _ in 0..MANY {
        attempt!(leave(SystemCall::Wait, [child.number() as usize, 0, 0, 0, 0, 0]));
    }
    settle().await;
    attempt!(child.kill());
    settle().await;
    static SOON: [i64; 2] = [0, 400_000_000];
    for _ in 0..MANY / 2 {
        attempt!(leave(SystemCall::Sleep, [SOON.as_ptr() as usize, 0, 0, 0, 0, 0]));
    }
    cops::sleep(cops::time::Duration::from_millis(600)).await;
    Ok(())
}

/// Polls many descriptors together.
fn readiness() -> Result<()> {
    let mut ends = [0u32; 2];
    let waiting = call(SystemCall::EpollCreate, [0; 6])?;
    let mut list = Vec::new();
    for number in 0..4000u64 {
        call(SystemCall::Pipe, [ends.as_mut_ptr() as usize, 0, 0, 0, 0, 0])?;
        let bytes = epoll::Event { events: epoll::OUT, data: number }.to_bytes();
        for end in ends {
            let add = epoll::CTL_ADD as usize;
            call(SystemCall::EpollControl, [waiting, add, end as usize, bytes.as_ptr() as usize, 0, 0])?;
            list.extend_from_slice(&end.to_le_bytes());
            list.extend_from_slice(&(epoll::IN as u16).to_le_bytes());
            list.extend_from_slice(&[0; 2]);
        }
    }
    let now = [0i64; 2];
    call(SystemCall::Poll, [list.as_mut_ptr() as usize, list.len() / 8, now.as_ptr() as usize, 0, 0, 0])?;
    let mut events = vec![0u8; 1024 * epoll::Event::SIZE];
    call(SystemCall::EpollWait, [waiting, events.as_mut_ptr() as usize, 1024, 0, 0, 0])?;
    call(SystemCall::Close, [waiting, 0, 0, 0, 0, 0])?;
    for entry in list.chunks_exact(8) {
        let end = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
        call(SystemCall::Close, [end as usize, 0, 0, 0, 0, 0])?;
    }
    Ok(())
}

/// Watches one file as often as a process can, by two epolls: one is closed before the file, the other after it.
fn watching() -> Result<()> {
    let mut ends = [0u32; 2];
    call(SystemCall::Pipe, [ends.as_mut_ptr() as usize, 0, 0, 0, 0, 0])?;
    let epolls = [call(SystemCall::EpollCreate, [0; 6])?, call(SystemCall::EpollCreate, [0; 6])?];
    let mut copies = vec![ends[0] as usize];
    while copies.len() < DESCRIPTORS / 2 {
        copies.push(call(SystemCall::Duplicate, [copies[0], 0, 0, 0, 0, 0])?);
    }
    for &copy in &copies {
        let bytes = epoll::Event { events: epoll::IN, data: copy as u64 }.to_bytes();
        for waiting in epolls {
            let add = epoll::CTL_ADD as usize;
            call(SystemCall::EpollControl, [waiting, add, copy, bytes.as_ptr() as usize, 0, 0])?;
        }
    }
    call(SystemCall::Close, [epolls[0], 0, 0, 0, 0, 0])?;
    for descriptor in copies.into_iter().chain([ends[1] as usize, epolls[1]]) {
        call(SystemCall::Close, [descriptor, 0, 0, 0, 0, 0])?;
    }
    Ok(())
}

/// Fills and empties a pipe at once.
fn pipes() -> Result<()> {
    let mut ends = [0u32; 2];
    call(SystemCall::Pipe, [ends.as_mut_ptr() as usize, open::NONBLOCK as usize, 0, 0, 0, 0])?;
    let mut bytes = vec![7u8; 1 << 20];
    for _ in 0..4 {
        call(SystemCall::Write, [ends[1] as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0])?;
        call(SystemCall::Read, [ends[0] as usize, bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0])?;
    }
    for end in ends {
        call(SystemCall::Close, [end as usize, 0, 0, 0, 0, 0])?;
    }
    Ok(())
}

/// Copies a large file to another, to a device, through a pipe and through a local socket, without a buffer.
fn relays() -> Result<()> {
    let area = map(LARGE, mapping::ANONYMOUS, 0)?;
    let (file, copy) = (open(FILE, open::RDWR | open::CREAT)?, open(c"/copy", open::RDWR | open::CREAT)?);
    expect(call(SystemCall::Write, [file, area, LARGE, 0, 0, 0])?, LARGE)?;
    let copied = |file: usize, from: &mut u64, copy: usize, to: &mut u64| {
        call(SystemCall::CopyFileRange, [file, from as *mut u64 as usize, copy, to as *mut u64 as usize, LARGE, 0])
    };
    expect(copied(file, &mut 0, copy, &mut 0)?, LARGE)?;
    expect(copied(file, &mut 7, copy, &mut 4093)?, LARGE - 7)?;
    call(SystemCall::Seek, [file, 0, 0, 0, 0, 0])?;
    call(SystemCall::Seek, [copy, 1, 0, 0, 0, 0])?;
    expect(call(SystemCall::CopyFileRange, [file, 0, copy, 0, LARGE, 0])?, LARGE)?;
    let send = |output: usize, from: &mut u64| {
        call(SystemCall::SendFile, [output, file, from as *mut u64 as usize, LARGE, 0, 0])
    };
    let null = open(c"/dev/null", open::RDWR)?;
    expect(send(null, &mut 0)?, LARGE)?;
    let (mut pipe, mut pair) = ([0u32; 2], [0u32; 2]);
    call(SystemCall::Pipe, [pipe.as_mut_ptr() as usize, open::NONBLOCK as usize, 0, 0, 0, 0])?;
    let kind = (types::SOCK_STREAM | types::SOCK_NONBLOCK) as usize;
    call(SystemCall::SocketPair, [1, kind, 0, pair.as_mut_ptr() as usize, 0, 0])?;
    for [reader, writer] in [pipe, pair].map(|ends| ends.map(|end| end as usize)) {
        let mut from = 4093;
        for _ in 0..8 {
            let sent = send(writer, &mut from)?;
            let mut read = 0;
            while read < sent {
                read += call(SystemCall::Read, [reader, area, LARGE, 0, 0, 0])?;
            }
        }
        call(SystemCall::Close, [writer, 0, 0, 0, 0, 0])?;
        call(SystemCall::Close, [reader, 0, 0, 0, 0, 0])?;
    }
    for file in [file, copy, null] {
        call(SystemCall::Close, [file, 0, 0, 0, 0, 0])?;
    }
    call(SystemCall::Unmap, [area, LARGE, 0, 0, 0, 0])?;
    call(SystemCall::Unlink, [HERE, path(c"/copy"), 0, 0, 0, 0])?;
    call(SystemCall::Unlink, [HERE, path(FILE), 0, 0, 0, 0]).map(drop)
}

/// Splices a large file through a pipe to another and to a local socket, copies and fills pipes without a buffer, from
/// one large buffer and from many small ones.
fn splices() -> Result<()> {
    let area = map(LARGE, mapping::ANONYMOUS, 0)?;
    let (file, copy) = (open(FILE, open::RDWR | open::CREAT)?, open(c"/copy", open::RDWR | open::CREAT)?);
    expect(call(SystemCall::Write, [file, area, LARGE, 0, 0, 0])?, LARGE)?;
    let (mut pipes, mut pair) = ([[0u32; 2]; 2], [0u32; 2]);
    for pipe in &mut pipes {
        call(SystemCall::Pipe, [pipe.as_mut_ptr() as usize, open::NONBLOCK as usize, 0, 0, 0, 0])?;
    }
    let kind = (types::SOCK_STREAM | types::SOCK_NONBLOCK) as usize;
    call(SystemCall::SocketPair, [1, kind, 0, pair.as_mut_ptr() as usize, 0, 0])?;
    let [first, second] = pipes.map(|pipe| pipe.map(|end| end as usize));
    let pair = pair.map(|end| end as usize);
    let splice = |input: usize, from: Option<&mut u64>, output: usize| {
        let from = from.map_or(0, |from| from as *mut u64 as usize);
        call(SystemCall::Splice, [input, from, output, 0, LARGE, 0])
    };
    let mut from = 4093;
    for _ in 0..8 {
        let moved = splice(file, Some(&mut from), first[1])?;
        // The second pipe gets the same bytes, which then go to a file and to a socket.
        call(SystemCall::Tee, [first[0], second[1], LARGE, 0, 0, 0])?;
        expect(splice(first[0], None, copy)?, moved)?;
        let mut left = splice(second[0], None, pair[1])?;
        while left > 0 {
            left -= call(SystemCall::Read, [pair[0], area, LARGE, 0, 0, 0])?;
        }
        for (size, count) in [(LARGE, 1), (7, 1024)] {
            let vector: Vec<[usize; 2]> = (0..count).map(|number| [area + number * 4093, size]).collect();
            let moved = call(SystemCall::SpliceMemory, [first[1], vector.as_ptr() as usize, count, 0, 0, 0])?;
            let vector = [[area, LARGE]];
            // Out of the pipe again.
            expect(call(SystemCall::SpliceMemory, [first[0], vector.as_ptr() as usize, 1, 0, 0, 0])?, moved)?;
        }
        let _ = call(SystemCall::Read, [second[0], area, LARGE, 0, 0, 0]);
    }
    for file in [file, copy].into_iter().chain(first).chain(second).chain(pair) {
        call(SystemCall::Close, [file, 0, 0, 0, 0, 0])?;
    }
    call(SystemCall::Unmap, [area, LARGE, 0, 0, 0, 0])?;
    call(SystemCall::Unlink, [HERE, path(c"/copy"), 0, 0, 0, 0])?;
    call(SystemCall::Unlink, [HERE, path(FILE), 0, 0, 0, 0]).map(drop)
}

/// Gives a large file its pages, also while it is mapped, and makes holes in it, also far behind its end.
fn allocations() -> Result<()> {
    use types::allocation::{KEEP_SIZE, PUNCH_HOLE};
    let file = open(FILE, open::RDWR | open::CREAT)?;
    let allocate = |mode: u32, offset: usize, length: usize| {
        call(SystemCall::Allocate, [file, mode as usize, offset, length, 0, 0]).map(drop)
    };
    allocate(0, 0, LARGE)?;
    for page in (0..LARGE).step_by(2 * PAGE) {
        allocate(KEEP_SIZE | PUNCH_HOLE, page, PAGE)?;
    }
    allocate(0, 1, LARGE)?;
    allocate(KEEP_SIZE, 1 << 40, LARGE)?;
    allocate(KEEP_SIZE | PUNCH_HOLE, 0, 1 << 41)?;
    allocate(0, 0, LARGE)?;
    let rights = (protection::READ | protection::WRITE) as usize;
    let area = call(SystemCall::Map, [0, LARGE, rights, mapping::SHARED as usize, file, 0])?;
    call(SystemCall::GetRandom, [area, 1 << 20, 0, 0, 0, 0])?;
    allocate(KEEP_SIZE | PUNCH_HOLE, PAGE, LARGE - 2 * PAGE)?;
    allocate(0, 0, LARGE)?;
    call(SystemCall::Unmap, [area, LARGE, 0, 0, 0, 0])?;
    call(SystemCall::Close, [file, 0, 0, 0, 0, 0])?;
    call(SystemCall::Unlink, [HERE, path(FILE), 0, 0, 0, 0]).map(drop)
}

/// Seeks data and holes of a file with many pages: all there, all in holes, and every second one.
fn holes() -> Result<()> {
    use types::allocation::{KEEP_SIZE, PUNCH_HOLE};
    let file = open(FILE, open::RDWR | open::CREAT)?;
    let seek = |from: usize, whence: u32| call(SystemCall::Seek, [file, from, whence as usize, 0, 0, 0]);
    call(SystemCall::Allocate, [file, 0, 0, LARGE, 0, 0])?;
    expect(seek(0, types::SEEK_HOLE)?, 0)?;
    expect(usize::from(seek(0, types::SEEK_DATA) == Err(Errno::ENXIO)), 1)?;
    let bytes = vec![1u8; 1 << 20];
    for at in (0..LARGE).step_by(bytes.len()) {
        call(SystemCall::WriteAt, [file, bytes.as_ptr() as usize, bytes.len(), at, 0, 0])?;
    }
    expect(seek(0, types::SEEK_HOLE)?, LARGE)?;
    for page in (0..LARGE).step_by(2 * PAGE) {
        call(SystemCall::Allocate, [file, (KEEP_SIZE | PUNCH_HOLE) as usize, page, PAGE, 0, 0])?;
        expect(seek(page, types::SEEK_DATA)?, page + PAGE)?;
    }
    call(SystemCall::Truncate, [file, 1 << 40, 0, 0, 0, 0])?;
    expect(usize::from(seek(LARGE, types::SEEK_DATA) == Err(Errno::ENXIO)), 1)?;
    call(SystemCall::Close, [file, 0, 0, 0, 0, 0])?;
    call(SystemCall::Unlink, [HERE, path(FILE), 0, 0, 0, 0]).map(drop)
}

/// Reads the lists of this process's memory, which count its pages, with large regions and with thousands of small
/// ones.
fn counted_pages() -> Result<()> {
    let read = || -> Result<()> {
        let mut text = vec![0u8; 1 << 16];
        for list in [c"/proc/self/maps", c"/proc/self/smaps", c"/proc/self/smaps_rollup", c"/proc/self/statm"] {
            let list = open(list, open::RDONLY)?;
            while call(SystemCall::Read, [list, text.as_mut_ptr() as usize, text.len(), 0, 0, 0])? > 0 {}
            call(SystemCall::Close, [list, 0, 0, 0, 0, 0])?;
        }
        Ok(())
    };
    let empty = map(1 << 35, mapping::ANONYMOUS | mapping::NORESERVE, 0)?;
    let full = map(LARGE, mapping::ANONYMOUS, 0)?;
    for page in (full..full + LARGE).step_by(PAGE) {
        call(SystemCall::GetRandom, [page, 1, 0, 0, 0, 0])?;
    }
    read()?;
    for page in (full..full + LARGE).step_by(2 * PAGE) {
        call(SystemCall::Protect, [page, PAGE, protection::READ as usize, 0, 0, 0])?;
    }
    read()?;
    call(SystemCall::Unmap, [full, LARGE, 0, 0, 0, 0])?;
    call(SystemCall::Unmap, [empty, 1 << 35, 0, 0, 0, 0]).map(drop)
}

/// Threads and files of a process that waits for signals.
const THREADS: usize = 4000;
const SIGNAL_FILES: usize = 4000;
/// Bytes of the stack of such a thread.
const STACK: usize = 2048;

/// A thread that waits for a word that nobody changes.
extern "C" fn sleep_for_ever(_: usize) -> ! {
    static NEVER: AtomicU32 = AtomicU32::new(0);
    loop {
        let _ = system::thread::futex_wait(&NEVER, 0, None);
    }
}

/// Sends signals to a process with thousands of threads that block them all, and with thousands of files at which it
/// waits for them; to single threads; and changes what it blocks and ignores meanwhile.
async fn signals() -> Result<()> {
    const FIRST: usize = 10;
    const SECOND: usize = 12;
    const RECORD: usize = types::SIGNAL_RECORD;
    static ALL: u64 = !0;
    static NONE: u64 = 0;
    let block =
        |how: usize, set: &'static u64| call(SystemCall::SignalMask, [how, set as *const u64 as usize, 0, 8, 0, 0]);
    let (set, unset) = (2, 1);
    block(set, &ALL)?;
    // Their stacks are in one mapping: thousands of those are another subject.
    let stacks = map(THREADS * STACK, mapping::ANONYMOUS, 0)?;
    let numbers = Box::leak((0..THREADS).map(|_| AtomicU32::new(0)).collect::<Vec<_>>().into_boxed_slice());
    for (index, number) in numbers.iter().enumerate() {
        let stack = core::ptr::with_exposed_provenance_mut::<u8>(stacks + (index + 1) * STACK);
        // SAFETY: each thread has a part of the mapping for itself, for ever as it has its number.
        unsafe { system::thread::start(sleep_for_ever, 0, stack, 0, number)? };
    }
    let own = call(SystemCall::GetProcess, [0; 6])?;
    let watched: &'static u64 = Box::leak(Box::new(1 << (FIRST - 1)));
    let other: &'static u64 = Box::leak(Box::new(1 << (SECOND - 1)));
    let file_for = |set: &'static u64| {
        call(SystemCall::SignalFile, [usize::MAX, set as *const u64 as usize, 8, open::NONBLOCK as usize, 0, 0])
    };
    let record = Box::leak(Box::new([0u8; 64 * RECORD])).as_mut_ptr() as usize;
    let waiting = call(SystemCall::EpollCreate, [0; 6])?;
    let mut files = Vec::new();
    for number in 0..SIGNAL_FILES {
        // Half of the files have a wait, and all of them are watched.
        let file = file_for(if number % 2 == 0 { watched } else { other })?;
        let bytes = epoll::Event { events: epoll::IN, data: number as u64 }.to_bytes();
        let add = epoll::CTL_ADD as usize;
        call(SystemCall::EpollControl, [waiting, add, file, bytes.as_ptr() as usize, 0, 0])?;
        if number % 2 == 0 {
            call(SystemCall::FileControl, [file, control::SETFL as usize, 0, 0, 0, 0])?;
            leave(SystemCall::Read, [file, record, RECORD, 0, 0, 0])?;
        }
        files.push(file);
    }
    settle().await;
    let own_thread = call(SystemCall::GetThread, [0; 6])?;
    for signal in [FIRST, SECOND, 18, 20, 18, 64] {
        call(SystemCall::Kill, [own, signal, 0, 0, 0, 0])?;
        call(SystemCall::KillThread, [own_thread, signal, 0, 0, 0, 0])?;
        settle().await;
        let mut events = vec![0u8; 1024 * epoll::Event::SIZE];
        call(SystemCall::EpollWait, [waiting, events.as_mut_ptr() as usize, 1024, 0, 0, 0])?;
    }
    let last = *files.last().ok_or(Errno::ERANGE)?;
    expect(call(SystemCall::Read, [last, record, 64 * RECORD, 0, 0, 0])?, 2 * RECORD)?;
    // Each thread has one of its own, which others then take away.
    for slot in 0..THREADS {
        let _ = call(SystemCall::KillThread, [own + (slot + 8) * 0x1_0000, 20, 0, 0, 0, 0]);
    }
    call(SystemCall::Kill, [own, 18, 0, 0, 0, 0])?;
    static IGNORE: [usize; 4] = [1, 0, 0, 0];
    for signal in [18, 20, FIRST, SECOND, 64] {
        call(SystemCall::Kill, [own, signal, 0, 0, 0, 0])?;
        call(SystemCall::SignalAction, [signal, IGNORE.as_ptr() as usize, 0, 8, 0, 0])?;
        call(SystemCall::Kill, [own, signal, 0, 0, 0, 0])?;
    }
    // Receives those to the process, and gives them up to others that block them.
    for set_of_signals in [&NONE, &ALL] {
        call(SystemCall::Kill, [own, FIRST, 0, 0, 0, 0])?;
        block(set, set_of_signals)?;
    }
    block(unset, watched)?;
    static NOW: [i64; 2] = [0; 2];
    let _ = call(SystemCall::SignalWait, [watched as *const u64 as usize, 0, NOW.as_ptr() as usize, 8, 0, 0]);
    call(SystemCall::SignalFile, [last, watched as *const u64 as usize, 8, 0, 0, 0])?;
    settle().await;
    for file in files {
        call(SystemCall::Close, [file, 0, 0, 0, 0, 0])?;
    }
    Ok(())
}

/// Most buffers of a call, and the bytes of each.
const BUFFERS: usize = 1024;
const PART: usize = 64;

/// Sends several messages in a call, as many as there is room for, and receives them without room for files, which are
/// closed.
fn batches(pair: [u32; 2], sent: &[u8], received: &[u8]) -> Result<()> {
    let batch = |name: SystemCall, socket: u32, header: &[u8]| {
        let mut array = [[0; MessageHeader::SIZE_IN_ARRAY]; 4];
        array.iter_mut().for_each(|place| place[..MessageHeader::SIZE].copy_from_slice(header));
        let flags = message::DONTWAIT as usize;
        call(name, [socket as usize, array.as_mut_ptr() as usize, array.len(), flags, 0, 0])
    };
    let count = batch(SystemCall::SendMessages, pair[0], sent)?;
    expect(count.clamp(1, 4), count)?;
    while batch(SystemCall::ReceiveMessages, pair[1], received).is_ok() {}
    Ok(())
}

/// Moves as many buffers as a call may have through a pipe and through local sockets, with as many files as a message
/// may have, alone and with others in a call; and closes a socket with many files.
fn messages() -> Result<()> {
    let mut bytes = vec![7u8; BUFFERS * PART];
    let place = bytes.as_mut_ptr() as usize;
    let parts: Vec<[usize; 2]> = (0..BUFFERS).map(|index| [place + index * PART, PART]).collect();
    let list = parts.as_ptr() as usize;
    let mut ends = [0u32; 2];
    call(SystemCall::Pipe, [ends.as_mut_ptr() as usize, 0, 0, 0, 0, 0])?;
    expect(call(SystemCall::WriteVector, [ends[1] as usize, list, BUFFERS, 0, 0, 0])?, bytes.len())?;
    let mut read = 0;
    while read < bytes.len() {
        // It may end at an interrupt.
        read += call(SystemCall::ReadVector, [ends[0] as usize, list, BUFFERS, 0, 0, 0])?;
    }
    let mut rights = vec![ends[0]; 4 + message::MOST_FILES];
    let length = rights.len() * 4;
    rights[..4].copy_from_slice(&[length as u32, 0, socket_option::SOL_SOCKET, message::SCM_RIGHTS]);
    let header = |count: usize, control: usize| {
        let header = MessageHeader {
            buffers: list as u64,
            count: count as u64,
            control: control as u64,
            control_length: if control == 0 { 0 } else { length as u64 },
            ..MessageHeader::default()
        };
        header.to_bytes()
    };
    let message = |name: SystemCall, socket: u32, header: &[u8], flags: u32| {
        call(name, [socket as usize, header.as_ptr() as usize, flags as usize, 0, 0, 0])
    };
    for kind in [types::SOCK_STREAM, types::SOCK_DGRAM] {
        let mut pair = [0u32; 2];
        call(SystemCall::SocketPair, [1, kind as usize, 0, pair.as_mut_ptr() as usize, 0, 0])?;
        let whole = header(BUFFERS, rights.as_ptr() as usize);
        expect(message(SystemCall::SendMessage, pair[0], &whole, 0)?, bytes.len())?;
        for flags in [message::PEEK, message::WAITALL] {
            let mut control = vec![0u32; rights.len()];
            let place = header(BUFFERS, control.as_mut_ptr() as usize);
            let received = message(SystemCall::ReceiveMessage, pair[1], &place, flags)?;
            // A look at a stream, and a read up to its files, may show less.
            expect(received.min(bytes.len()), received)?;
            for &file in &control[4..] {
                call(SystemCall::Close, [file as usize, 0, 0, 0, 0, 0])?;
            }
        }
        batches(pair, &whole, &header(BUFFERS, 0))?;
        // As many messages and files as there is room for, which the other end does not receive.
        let small = header(1, rights.as_ptr() as usize);
        while message(SystemCall::SendMessage, pair[0], &small, message::DONTWAIT).is_ok() {}
        let none = header(usize::from(kind == types::SOCK_STREAM), 0);
        for _ in 0..300 {
            let _ = message(SystemCall::SendMessage, pair[0], &none, message::DONTWAIT);
        }
        close([pair[1], pair[0]])?;
    }
    close(ends)
}

/// Makes as many local connections as wait in a backlog, and closes them with the listener; takes a datagram socket's
/// peer from it that has sent it as much as it holds, and lists many sockets.
fn local_names() -> Result<()> {
    let address = |name: &[u8]| [&types::AF_UNIX.to_le_bytes()[..], name].concat();
    let socket = |kind: u32| {
        let kind = (kind | types::SOCK_NONBLOCK) as usize;
        call(SystemCall::Socket, [types::AF_UNIX as usize, kind, 0, 0, 0, 0])
    };
    let with = |name: SystemCall, socket: usize, address: &[u8]| {
        call(name, [socket, address.as_ptr() as usize, address.len(), 0, 0, 0])
    };
    let close = |socket: usize| call(SystemCall::Close, [socket, 0, 0, 0, 0, 0]).map(drop);
    // A path of as many components as a name can have.
    let path = address(&[b"/tmp/".as_slice(), &b"./".repeat(49), b"here\0"].concat());
    for name in [&path, &address(b"\0longest stretch")] {
        for kind in [types::SOCK_STREAM, types::SOCK_SEQPACKET] {
            let listener = socket(kind)?;
            with(SystemCall::Bind, listener, name)?;
            call(SystemCall::Listen, [listener, usize::MAX, 0, 0, 0, 0])?;
            let mut count = 0;
            loop {
                let client = socket(kind)?;
                let connected = with(SystemCall::Connect, client, name);
                if connected.is_ok() && count % 2 == 0 {
                    call(SystemCall::Write, [client, name.as_ptr() as usize, name.len(), 0, 0, 0])?;
                }
                close(client)?;
                if connected.is_err() {
                    break;
                }
                count += 1;
            }
            expect(count.min(1000), 1000)?;
            close(call(SystemCall::Accept, [listener, 0, 0, 0, 0, 0])?)?;
            close(listener)?;
            let file = name.as_ptr() as usize + 2;
            let _ = call(SystemCall::Unlink, [types::AT_FDCWD as usize, file, 0, 0, 0, 0]);
        }
    }
    let (name, other) = (address(b"\0one"), address(b"\0other"));
    let (receiver, sender, second) =
        (socket(types::SOCK_DGRAM)?, socket(types::SOCK_DGRAM)?, socket(types::SOCK_DGRAM)?);
    with(SystemCall::Bind, receiver, &name)?;
    with(SystemCall::Bind, sender, &other)?;
    with(SystemCall::Connect, receiver, &other)?;
    with(SystemCall::Bind, second, &address(b"\0second"))?;
    let bytes = [7u8; 200];
    let to = |socket: usize, name: &[u8]| {
        let place = (bytes.as_ptr() as usize, bytes.len());
        call(SystemCall::SendTo, [socket, place.0, place.1, 0, name.as_ptr() as usize, name.len()])
    };
    while to(sender, &name).is_ok() {}
    with(SystemCall::Connect, receiver, &address(b"\0second"))?;
    let many: Vec<usize> = (0..100).map(|_| socket(types::SOCK_DGRAM)).collect::<Result<_>>()?;
    many.iter().try_for_each(|socket| with(SystemCall::Bind, *socket, &address(b"")).map(drop))?;
    let list = c"/proc/net/unix".as_ptr() as usize;
    let list = call(SystemCall::Open, [types::AT_FDCWD as usize, list, 0, 0, 0, 0])?;
    let mut text = vec![0u8; 65536];
    while call(SystemCall::Read, [list, text.as_mut_ptr() as usize, text.len(), 0, 0, 0])? > 0 {}
    [receiver, sender, second, list].into_iter().chain(many).try_for_each(close)
}

fn close(ends: [u32; 2]) -> Result<()> {
    ends.iter().try_for_each(|&end| call(SystemCall::Close, [end as usize, 0, 0, 0, 0, 0]).map(drop))
}

/// Makes connections over the loopback device, of a stream and of datagrams: a socket that sends, and one that
/// receives.
fn connections() -> Result<[[usize; 2]; 2]> {
    let place = |port| SocketAddress { address: [127, 0, 0, 1], port }.to_bytes();
    let socket = |kind: u32| call(SystemCall::Socket, [types::AF_INET as usize, kind as usize, 0, 0, 0, 0]);
    let with = |name: SystemCall, socket: usize, address: &[u8; 16]| {
        call(name, [socket, address.as_ptr() as usize, address.len(), 0, 0, 0])
    };
    let (stream, datagrams) = (place(7101), place(7102));
    let listener = socket(types::SOCK_STREAM)?;
    with(SystemCall::Bind, listener, &stream)?;
    call(SystemCall::Listen, [listener, 1, 0, 0, 0, 0])?;
    let client = socket(types::SOCK_STREAM)?;
    with(SystemCall::Connect, client, &stream)?;
    let server = call(SystemCall::Accept, [listener, 0, 0, 0, 0, 0])?;
    call(SystemCall::Close, [listener, 0, 0, 0, 0, 0])?;
    let (sender, receiver) = (socket(types::SOCK_DGRAM)?, socket(types::SOCK_DGRAM)?);
    with(SystemCall::Bind, receiver, &datagrams)?;
    with(SystemCall::Connect, sender, &datagrams)?;
    for socket in [client, server, sender, receiver] {
        call(SystemCall::FileControl, [socket, control::SETFL as usize, open::NONBLOCK as usize, 0, 0, 0])?;
    }
    Ok([[client, server], [sender, receiver]])
}

/// Moves bytes from and to pages that were not touched through a pipe.
fn pages_by_pipe() -> Result<()> {
    let mut pipe = [0u32; 2];
    call(SystemCall::Pipe, [pipe.as_mut_ptr() as usize, open::NONBLOCK as usize, 0, 0, 0, 0])?;
    move_pages([pipe[1] as usize, pipe[0] as usize])
}

/// Does so through local sockets.
fn pages_by_local_sockets() -> Result<()> {
    for kind in [types::SOCK_STREAM, types::SOCK_DGRAM] {
        let mut pair = [0u32; 2];
        let kind = (kind | types::SOCK_NONBLOCK) as usize;
        call(SystemCall::SocketPair, [1, kind, 0, pair.as_mut_ptr() as usize, 0, 0])?;
        move_pages(pair.map(|end| end as usize))?;
    }
    Ok(())
}

/// Does so through a stream over the loopback device.
fn pages_by_stream() -> Result<()> {
    let [stream, datagrams] = connections()?;
    move_pages(stream)?;
    datagrams.into_iter().try_for_each(|socket| call(SystemCall::Close, [socket, 0, 0, 0, 0, 0]).map(drop))
}

/// Does so in datagrams over the loopback device.
fn pages_by_datagrams() -> Result<()> {
    let [stream, datagrams] = connections()?;
    move_pages(datagrams)?;
    stream.into_iter().try_for_each(|socket| call(SystemCall::Close, [socket, 0, 0, 0, 0, 0]).map(drop))
}

/// Moves bytes from and to pages that were not touched, in one buffer and in one for each page, and closes both ends.
fn move_pages([writer, reader]: [usize; 2]) -> Result<()> {
    const WHOLE: usize = 65536;
    const PAGE: usize = 4096;
    // Time in which bytes arrive.
    static SOON: [i64; 2] = [0, 1_000_000];
    let wait = || call(SystemCall::Sleep, [SOON.as_ptr() as usize, 0, 0, 0, 0, 0]);
    let areas =
        || Ok::<_, Errno>([map(BUFFERS * PAGE, mapping::ANONYMOUS, 0)?, map(BUFFERS * PAGE, mapping::ANONYMOUS, 0)?]);
    let unmap = |areas: [usize; 2]| {
        areas.into_iter().try_for_each(|area| call(SystemCall::Unmap, [area, BUFFERS * PAGE, 0, 0, 0, 0]).map(drop))
    };
    // As much as each kind takes, and as much as a datagram may have.
    for length in [WHOLE, 65507] {
        let [from, to] = areas()?;
        if call(SystemCall::Write, [writer, from, length, 0, 0, 0]).is_ok() {
            wait()?;
            while call(SystemCall::Read, [reader, to, length, 0, 0, 0]).is_ok() {}
        }
        unmap([from, to])?;
    }
    // A write to a pipe that may not be parted, and much.
    for bytes in [3, 16, PART - 1] {
        let [from, to] = areas()?;
        let parts = |area: usize| (0..BUFFERS).map(|index| [area + index * PAGE, bytes]).collect::<Vec<_>>();
        let (sent, received) = (parts(from), parts(to));
        if call(SystemCall::WriteVector, [writer, sent.as_ptr() as usize, BUFFERS, 0, 0, 0]).is_ok() {
            wait()?;
            while call(SystemCall::ReadVector, [reader, received.as_ptr() as usize, BUFFERS, 0, 0, 0]).is_ok() {}
        }
        unmap([from, to])?;
    }
    for end in [writer, reader] {
        call(SystemCall::Close, [end, 0, 0, 0, 0, 0])?;
    }
    Ok(())
}

/// Edits lines that are as long as a terminal takes them, and reads one.
fn terminals() -> Result<()> {
    const LINE: usize = 4090;
    let master = system::terminal::pseudo_terminal()?;
    let slave = system::terminal::open_slave(master.raw(), open::RDWR | open::NOCTTY)?;
    let mut buffer = vec![0u8; 8192];
    let mut shown = || {
        while system::terminal::readable(master.raw())? > 0 {
            file::read(master.raw(), &mut buffer)?;
        }
        Ok::<(), Errno>(())
    };
    // The keys that erase a word, show a line again, and erase it.
    for (key, edits) in [(b'x', b"\x17"), (b'x', b"\x12"), (b'x', b"\x15"), (b'\t', b"\x15"), (0x01, b"\x15")] {
        file::write(master.raw(), &vec![key; LINE])?;
        shown()?;
        file::write(master.raw(), edits)?;
        shown()?;
        file::write(master.raw(), b"\x15")?;
        shown()?;
    }
    file::write(master.raw(), &vec![b'x'; LINE])?;
    file::write(master.raw(), b"\n")?;
    let mut line = vec![0u8; 8192];
    let mut read = 0;
    while read <= LINE {
        read += file::read(slave.raw(), &mut line)?;
    }
    shown()
}

/// Follows paths of as many components as one can have: to itself, to its parent, through directories, and through
/// symbolic links of that kind, of which a path may lead through forty.
fn paths() -> Result<()> {
    const LENGTH: usize = 4095;
    const LINKS: usize = 40;
    let status = [0u64; 16];
    let look =
        |path: &[u8]| call(SystemCall::StatusAt, [HERE, path.as_ptr() as usize, status.as_ptr() as usize, 0, 0, 0]);
    let winding = |part: &str, end: &str| {
        let mut path = part.repeat((LENGTH - end.len()) / part.len());
        path.push_str(end);
        path.push('\0');
        path.into_bytes()
    };
    expect(look(&winding("./", ""))?, 0)?;
    expect(look(&winding("../", ""))?, 0)?;
    expect(look(&winding("/", ""))?, 0)?;
    let directory = c"/deep";
    call(SystemCall::MakeDirectory, [HERE, path(directory), 0o700, 0, 0, 0])?;
    call(SystemCall::ChangeDirectory, [path(directory), 0, 0, 0, 0, 0])?;
    for _ in 0..LENGTH / 2 {
        call(SystemCall::MakeDirectory, [HERE, path(c"d"), 0o700, 0, 0, 0])?;
        call(SystemCall::ChangeDirectory, [path(c"d"), 0, 0, 0, 0, 0])?;
    }
    // The longest path that a directory can have, and a rename between two of that depth.
    for _ in 0..3 {
        call(SystemCall::ChangeDirectory, [path(c".."), 0, 0, 0, 0, 0])?;
    }
    let own = [0u8; LENGTH + 1];
    let length = call(SystemCall::GetCurrentDirectory, [own.as_ptr() as usize, own.len(), 0, 0, 0, 0])?;
    expect(length.max(LENGTH - 8), length)?;
    for name in [c"old", c"new"] {
        call(SystemCall::MakeDirectory, [HERE, path(name), 0o700, 0, 0, 0])?;
    }
    call(SystemCall::Rename, [HERE, path(c"old"), HERE, path(c"new/old"), 0, 0])?;
    call(SystemCall::Unlink, [HERE, path(c"new/old"), 0x200, 0, 0, 0])?;
    call(SystemCall::Unlink, [HERE, path(c"new"), 0x200, 0, 0, 0])?;
    call(SystemCall::ChangeDirectory, [path(directory), 0, 0, 0, 0, 0])?;
    let inside = winding("d/", "");
    expect(look(&inside)?, 0)?;
    for part in ["./", "../deep/"] {
        for index in 0..LINKS {
            let next = if index + 1 < LINKS { alloc::format!("{}", index + 1) } else { String::from(".") };
            let target = winding(part, &next);
            let name = alloc::format!("{index}\0");
            call(SystemCall::SymbolicLink, [target.as_ptr() as usize, HERE, name.as_ptr() as usize, 0, 0, 0])?;
        }
        expect(look(b"0\0")?, 0)?;
        for call_on_path in [SystemCall::Open, SystemCall::Access, SystemCall::ChangeModeAt, SystemCall::ChangeOwnerAt]
        {
            let _ = call(call_on_path, [HERE, path(c"0"), 0, 0, 0, 0]);
            let _ = call(call_on_path, [HERE, inside.as_ptr() as usize, 0, 0, 0, 0]);
        }
        let through = |name: &str| winding("./", &alloc::format!("0/{name}"));
        let (old, new) = (through("old"), through("new"));
        let (old, new) = (old.as_ptr() as usize, new.as_ptr() as usize);
        call(SystemCall::MakeDirectory, [HERE, old, 0o700, 0, 0, 0])?;
        call(SystemCall::Rename, [HERE, old, HERE, new, 0, 0])?;
        call(SystemCall::Unlink, [HERE, new, 0x200, 0, 0, 0])?;
        for index in 0..LINKS {
            let name = alloc::format!("{index}\0");
            call(SystemCall::Unlink, [HERE, name.as_ptr() as usize, 0, 0, 0, 0])?;
        }
    }
    call(SystemCall::ChangeDirectory, [path(c"/"), 0, 0, 0, 0, 0])?;
    Ok(())
}

/// Executes another program, with many descriptors of which the last is closed by that, and with many completions that
/// were not taken.
fn execute_with_much() -> Result<()> {
    many_descriptors()?;
    let last = DESCRIPTORS - 1;
    call(SystemCall::FileControl, [last, control::SETFD as usize, control::FD_CLOEXEC as usize, 0, 0, 0])?;
    static SOON: [i64; 2] = [0, 1_000_000];
    for _ in 0..MANY {
        leave(SystemCall::Sleep, [SOON.as_ptr() as usize, 0, 0, 0, 0, 0])?;
    }
    // A call of the worker itself, so that no completion is taken meanwhile.
    static LATER: [i64; 2] = [0, 100_000_000];
    call(SystemCall::Sleep, [LATER.as_ptr() as usize, 0, 0, 0, 0, 0])?;
    execute_nothing()
}

/// Executes another program while many calls are in flight.
async fn execute_with_calls() -> Result<()> {
    for _ in 0..MANY {
        leave(SystemCall::Futex, [WORD.as_ptr() as usize, futex::WAIT as usize, 0, 0, 0, 0])?;
    }
    settle().await;
    execute_nothing()
}

fn execute_nothing() -> Result<()> {
    let program = alloc::format!("{}\0", super::OWN_PATH);
    let words = [program.as_str(), "fairness\0", "longest_stretch\0", "act\0", "nothing\0"].map(str::as_ptr);
    let list: Vec<_> = words.into_iter().chain([core::ptr::null()]).collect();
    let none = core::ptr::null::<u8>();
    call(SystemCall::Execute, [program.as_ptr() as usize, list.as_ptr() as usize, (&raw const none) as usize, 0, 0, 0])
        .map(drop)
}

/// Fills a request ring as large as it can be, with short calls and some that write much; and ends with a full one.
fn request_ring() -> Result<()> {
    let (requests, mut producer) = requests(REQUESTS, REQUESTS)?;
    let (file, area) = (open(c"/ring", open::RDWR | open::CREAT)?, map(LARGE, mapping::ANONYMOUS, 0)?);
    call(SystemCall::Unlink, [HERE, path(c"/ring"), 0, 0, 0, 0])?;
    let status = Box::leak(Box::new([0u64; 16])).as_ptr() as usize;
    for round in 0..3 {
        for number in 0..REQUESTS {
            let (call, arguments) = match number % (REQUESTS / 4) {
                0 => (SystemCall::WriteAt, [file, area, LARGE, 0, 0, 0]),
                _ => (SystemCall::Status, [file, status, 0, 0, 0, 0]),
            };
            let call = asynchronous_number(call as usize, 7) as u64;
            let request = Request { call, token: 0, arguments: arguments.map(|argument| argument as u64) };
            // Completions that no program takes leave requests in the ring, until it has no room for more.
            if requests.submit(&mut producer, request, 0).is_err() {
                break;
            }
        }
        if round < 2 {
            cops::system::worker::ring_enter(0, 0)?;
            // A call of the worker itself, so that no completion is taken meanwhile.
            static LATER: [i64; 2] = [0, 300_000_000];
            call(SystemCall::Sleep, [LATER.as_ptr() as usize, 0, 0, 0, 0, 0])?;
        }
    }
    Ok(())
}

fn many_descriptors() -> Result<()> {
    let null = open(c"/dev/null", open::RDONLY)?;
    while call(SystemCall::Duplicate, [null, 0, 0, 0, 0, 0])? < DESCRIPTORS - 1 {}
    Ok(())
}

/// Runs a process that gets much of one kind.
async fn ends_well(what: &str) -> Outcome {
    let child = attempt!(accomplice("longest_stretch").argument(what).spawn());
    match attempt!(child.wait().await) {
        Ending::Exited(0) => Ok(()),
        _ => Err(alloc::format!("the process with much {what} did not end well")),
    }
}

/// Ends processes with many objects of each kind, starts one with long lists, and ends many together.
async fn processes() -> Outcome {
    let endings = [
        "memory",
        "descriptors",
        "closed-descriptors",
        "calls",
        "children",
        "execution",
        "execution-with-calls",
        "ring",
    ];
    for ending in endings {
        ends_well(ending).await?;
    }
    let word = "a".repeat(100);
    let mut lists = accomplice("longest_stretch").argument("nothing");
    for _ in 0..600 {
        lists = lists.argument(&word).variable(&word);
    }
    let child = attempt!(lists.spawn());
    attempt!(child.wait().await);
    let mut group = Vec::new();
    for _ in 0..100 {
        group.push(attempt!(accomplice("longest_stretch").argument("sleep").spawn()));
    }
    let first = group.first().map_or(0, |child| child.number());
    for child in &group {
        attempt!(call(SystemCall::SetProcessGroup, [child.number() as usize, first as usize, 0, 0, 0, 0]));
    }
    attempt!(call(SystemCall::Kill, [(first as i32).wrapping_neg() as usize, 9, 0, 0, 0, 0]));
    for child in group {
        attempt!(child.wait().await);
    }
    Ok(())
}

/// A part of the calls, with its name for a run alone.
type Drive = (&'static str, fn() -> Result<()>);

/// Drives that need no other process.
const DRIVES: &[Drive] = &[
    ("files", files_and_memory),
    ("shared_mappings", shared_mappings),
    ("regions", regions),
    ("remapping", remapping),
    ("removing", removing),
    ("directories", directories),
    ("inodes", inodes),
    ("pipes", pipes),
    ("relays", relays),
    ("splices", splices),
    ("allocations", allocations),
    ("holes", holes),
    ("counted_pages", counted_pages),
    ("messages", messages),
    ("local_names", local_names),
    ("file_events", file_events),
    ("raw_sockets", raw_sockets),
    ("pages_by_pipe", pages_by_pipe),
    ("pages_by_local_sockets", pages_by_local_sockets),
    ("pages_by_stream", pages_by_stream),
    ("pages_by_datagrams", pages_by_datagrams),
    ("terminals", terminals),
    ("paths", paths),
    ("readiness", readiness),
    ("watching", watching),
];

fn expect(found: usize, expected: usize) -> Result<()> {
    // A call with a smaller effect has not been measured at its largest.
    if found == expected { Ok(()) } else { Err(Errno::ERANGE) }
}

/// Runs all drives, or those of the next argument, separated by commas, and reports the kernel's measurements.
pub async fn measure() -> Outcome {
    attempt!(call(SystemCall::Snapshot, [subject::BEGIN_STRETCHES as usize, 0, 0, 0, 0, 0]));
    let only = crate::argument(3).ok();
    let is_wanted = |name: &str| only.as_ref().is_none_or(|only| only.split(',').any(|one| one == name));
    for (name, drive) in DRIVES {
        if is_wanted(name) {
            drive().map_err(|error| alloc::format!("the drive `{name}`: {error:?}"))?;
        }
    }
    if is_wanted("waiters") {
        attempt!(waiters().await);
    }
    if is_wanted("times") {
        waiting_for_children_and_times().await?;
    }
    if is_wanted("signals") {
        ends_well("signals").await?;
    }
    if is_wanted("processes") {
        processes().await?;
    }
    let mut words = vec![0u64; CAUSES * STRETCH_WORDS];
    let room = words.len() * 8;
    let asked = [subject::STRETCHES as usize, 0, words.as_mut_ptr() as usize, room, 0, 0];
    let count = attempt!(call(SystemCall::Snapshot, asked));
    let mut longest = 0.0f64;
    for entry in words[..count * STRETCH_WORDS].chunks_exact(STRETCH_WORDS) {
        let ns = entry[1] as f64;
        longest = longest.max(ns);
        figure(&alloc::format!("longest_stretch_of_{}", name(entry[0] as usize)), ns, "instructions");
    }
    figure("longest_stretch", longest, "instructions");
    Ok(())
}

/// Returns the name of a cause.
fn name(cause: usize) -> &'static str {
    match (stretch::call(cause).and_then(SystemCall::from_number), cause) {
        (Some(call), _) => call.name(),
        (None, stretch::TRAP) => "trap",
        (None, stretch::COMPLETER) => "completer",
        (None, stretch::END) => "end",
        (None, stretch::RING) => "ring",
        (None, stretch::POLLING) => "polling",
        (None, _) => "kernel",
    }
}

/// Gets many objects of one kind, and ends with them.
pub async fn act() -> Outcome {
    match crate::argument(4)?.as_str() {
        "sleep" => cops::sleep(cops::time::Duration::from_secs(3600)).await,
        "memory" => {
            let area = attempt!(map(LARGE, mapping::ANONYMOUS, 0));
            let file = attempt!(open(c"/dev/zero", open::RDONLY));
            attempt!(call(SystemCall::Read, [file, area, LARGE, 0, 0, 0]));
        }
        "descriptors" => attempt!(many_descriptors()),
        "closed-descriptors" => {
            attempt!(many_descriptors());
            for descriptor in 3..DESCRIPTORS - 1 {
                attempt!(call(SystemCall::Close, [descriptor, 0, 0, 0, 0, 0]));
            }
        }
        "execution" => attempt!(execute_with_much()),
        "execution-with-calls" => attempt!(execute_with_calls().await),
        "ring" => attempt!(request_ring()),
        "signals" => attempt!(signals().await),
        "calls" => {
            for _ in 0..MANY {
                attempt!(leave(SystemCall::Futex, [WORD.as_ptr() as usize, futex::WAIT as usize, 0, 0, 0, 0]));
            }
            settle().await;
        }
        "children" => {
            let mut children = Vec::new();
            for _ in 0..60 {
                children.push(attempt!(accomplice("longest_stretch").argument("nothing").spawn()));
            }
            settle().await;
            core::mem::forget(Box::new(children));
        }
        _ => {}
    }
    Ok(())
}
