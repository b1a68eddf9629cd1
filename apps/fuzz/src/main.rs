//! Random system calls: `fuzz SEED COUNT`.
//!
//! Every call of a process must get a result or an error number, and the kernel must continue. This program makes all
//! of them: each call of the table with arguments of the right kind, of the wrong kind and of no kind, numbers that do
//! not exist, and tokens that were never given. It leaves out only calls that would end itself by design (exiting,
//! starting other programs, unmapping its own code) or affect the outside (addresses of other machines, switching off).
//!
//! Some of the calls go through a request ring, whose other words are overwritten now and then.
//!
//! Calls that can wait are made in their asynchronous form, so that none of them stops the program; their completions
//! are taken now and then. Exit status 0 means that it came to the end and that calls still work.
//!
//! The calls are shared out. Half of them are the first worker's. Threads make a quarter beside it, with its
//! descriptors, its memory and its mappings, and so do processes that it has started, which share the ends of a pipe
//! and a counter with it (`fuzz SEED COUNT shared`). Each of these sequences depends on the seed alone; their order
//! does not.
#![no_std]
#![no_main]

use core::ffi::CStr;
use core::fmt::Write as _;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use abi_queue::{CompletionHeader, completion};
use abi_queue::{Request, RequestHeader, request};
use abi_unix::SystemCall;
use abi_unix::call::{Argument, NUMBER_MASK, Waiting};
use abi_unix::errno::decode;
use abi_unix::types::clock::MONOTONIC;
use abi_unix::types::futex::ROBUST_HEAD;
use abi_unix::types::protection::{READ, WRITE};
use abi_unix::types::{
    AF_UNIX, AT_FDCWD, AT_REMOVEDIR, AT_SYMLINK_NOFOLLOW, SocketAddress, TimeSpec, WNOHANG, auxiliary, limit, mapping,
    mounting, open, signal,
};
use ring::{Completions, Producer, Requests};
use unix::process::{Child, Ending, StringList};
use unix::raw::{syscall, syscall_asynchronous};

unix::entry!(main);

/// Longest path that is cleaned up, with its NUL.
const LONGEST_PATH: usize = 512;

/// Removes the file of a path, with all entries below it: random renames make trees of the files of random calls. The
/// path is the first `length` bytes of the buffer; the rest of it is zeros, and is again afterwards.
fn remove(path: &mut [u8; LONGEST_PATH], length: usize) {
    let Ok(name) = CStr::from_bytes_until_nul(path) else { return };
    if unix::file::unlink(name, 0).is_ok() || unix::file::unlink(name, AT_REMOVEDIR).is_ok() {
        return;
    }
    // One entry at a time, and from the start again, since each removal changes the listing.
    loop {
        let Ok(name) = CStr::from_bytes_until_nul(path) else { return };
        let Ok(directory) = unix::file::open(name, open::RDONLY | open::DIRECTORY, 0) else { return };
        let mut listing = [0; 1024];
        let count = unix::file::read_directory(directory.raw(), &mut listing).unwrap_or(0);
        drop(directory);
        // struct linux_dirent64: inode, next, length, type, name.
        let mut at = 0;
        let mut found = None;
        while at + 19 < count && found.is_none() {
            let size = usize::from(u16::from_le_bytes([listing[at + 16], listing[at + 17]]));
            let entry = listing[at + 19..at + size].split(|byte| *byte == 0).next().unwrap_or(&[]);
            if entry != b"." && entry != b".." {
                found = Some(at + 19..at + 19 + entry.len());
            }
            at += size;
        }
        let Some(entry) = found else { break };
        let end = length + 1 + entry.len();
        if end >= LONGEST_PATH {
            return;
        }
        path[length] = b'/';
        path[length + 1..end].copy_from_slice(&listing[entry]);
        remove(path, end);
        let Ok(child) = CStr::from_bytes_until_nul(path) else { return };
        let stays = unix::file::status_at(child, AT_SYMLINK_NOFOLLOW).is_ok();
        path[length..end].fill(0);
        if stays {
            return;
        }
    }
    if let Ok(name) = CStr::from_bytes_until_nul(path) {
        let _ = unix::file::unlink(name, AT_REMOVEDIR);
    }
}

/// Bytes that the kernel may write to, and as many again that it only reads.
const AREA: usize = 64 * 1024;
/// Address of these areas.
const AREAS: usize = 0x18_0000_0000;
/// First of the pages that mapping calls may change. No other mapping lies near them.
const PLAYGROUND: usize = 0x10_0000_0000;

/// A small random number generator (xorshift64*, Marsaglia and Vigna).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 33) as usize % limit
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// The memory that random calls may name.
#[derive(Clone, Copy)]
struct Areas {
    /// Read by the kernel, never written: paths, addresses, times.
    input: usize,
    /// Written by the kernel.
    output: usize,
}

/// Returns a value of the kernel's auxiliary vector, mostly an address.
fn kernel_s(key: u64) -> usize {
    unix::start::auxiliary_value(key).unwrap_or(0) as usize
}

/// Returns an address of this program's code, which is read-only.
fn own_code() -> usize {
    main as *const () as usize
}

/// Paths that may be created, opened, renamed and removed.
const OWN_PATHS: [&CStr; 4] = [c"/tmp/fuzz-a", c"/tmp/fuzz-b", c"/tmp/fuzz-d", c"/tmp/fuzz-d/x"];
/// Paths that may only be opened: they are shared.
const OTHER_PATHS: [&CStr; 4] = [c"/dev/zero", c"/dev/null", c"/bin", c""];
/// Distance of the items in the input area.
const STEP: usize = 256;
/// Names of local sockets.
const LOCAL_NAMES: [&[u8]; 4] = [b"\0a", b"\0bcd", b"/tmp/fuzz-a\0", b"\0"];

impl Areas {
    fn new(random: &mut Random) -> Option<Areas> {
        // Far from this program's own memory: a call may write beyond the area's end, as far as memory goes.
        let flags = mapping::PRIVATE | mapping::ANONYMOUS | mapping::FIXED_NOREPLACE;
        // SAFETY: the mapping replaces nothing.
        let area = unsafe { unix::memory::map_with(AREAS, 2 * AREA, READ | WRITE, flags, -1, 0) }.ok()?;
        // SAFETY: the mapping is ours and that long.
        let input = unsafe { core::slice::from_raw_parts_mut(area, AREA) };
        for (index, place) in input.chunks_exact_mut(STEP).enumerate() {
            match index % 4 {
                0 => {
                    // This program's own paths lie in the lower half.
                    let paths = if index < AREA / STEP / 2 { &OWN_PATHS } else { &OTHER_PATHS };
                    let path = random.of(paths).to_bytes_with_nul();
                    place[..path.len()].copy_from_slice(path);
                }
                1 => {
                    // Loopback only: a random address would be another machine's.
                    let address = SocketAddress { address: [127, 0, 0, 1], port: random.next() as u16 };
                    place[..16].copy_from_slice(&address.to_bytes());
                    if random.below(2) == 0 {
                        let name = random.of(&LOCAL_NAMES);
                        place[..2].copy_from_slice(&AF_UNIX.to_le_bytes());
                        place[2..2 + name.len()].copy_from_slice(name);
                    }
                }
                2 => {
                    let time = random.of(&[0, 1, 1000, 1_000_000]);
                    place[..16].copy_from_slice(&TimeSpec::from_ns(time).to_bytes());
                }
                // All kinds of wrong bytes: no NUL, no family, nanoseconds out of range.
                _ => place.fill(0xff),
            }
        }
        Some(Areas { input: area as usize, output: area as usize + AREA })
    }

    /// Returns addresses that no call may accept, or only for reading.
    fn bad(&self, random: &mut Random) -> usize {
        random.of(&[
            0,
            1,
            0xfff,
            0x10000,
            own_code(),
            PLAYGROUND,
            kernel_s(auxiliary::SYSINFO_EHDR),
            kernel_s(auxiliary::COPS_GLOBAL_PAGE),
            0x3f_ffff_ffff,
            0x40_0000_0000,
            0xffff_ffc0_8020_0000,
            0xffff_ffff_8000_0000,
            usize::MAX - 7,
            usize::MAX,
            self.output + AREA - 3,
        ])
    }

    fn input(&self, random: &mut Random) -> usize {
        if random.one_in(4) { self.bad(random) } else { self.input + random.below(AREA / STEP) * STEP }
    }

    /// Returns a path that may be created, renamed and removed.
    fn own_path(&self, random: &mut Random) -> usize {
        self.input + random.below(AREA / STEP / 8) * 4 * STEP
    }

    fn output(&self, random: &mut Random) -> usize {
        match random.below(16) {
            0..4 => self.bad(random),
            // Shared pages: a wrong value in them affects this process only.
            4 => kernel_s(auxiliary::COPS_PROCESS_PAGE) + random.below(4096),
            5 => self.output + random.below(AREA),
            _ => self.output + random.below(AREA / STEP) * STEP,
        }
    }

    fn length(random: &mut Random) -> usize {
        match random.below(8) {
            0 => random.of(&[usize::MAX, usize::MAX >> 1, 1 << 40, 1 << 32, 1 << 31]),
            1 => 0,
            2 => random.below(4096),
            _ => random.below(64),
        }
    }

    fn descriptor(random: &mut Random) -> usize {
        match random.below(16) {
            0 => random.of(&[-1i64 as usize, AT_FDCWD as usize, 1 << 31, 1 << 32, usize::MAX, 1023, 1024, 4096]),
            1 => AT_FDCWD as usize,
            _ => random.below(40),
        }
    }

    fn number(random: &mut Random) -> usize {
        match random.below(4) {
            0 => random.next() as usize,
            1 => random.of(&[usize::MAX, 1 << 31, 1 << 32, 0o4000, 0o2000000, 0o100, 0o200000]),
            2 => 1 << random.below(64),
            _ => random.below(16),
        }
    }
}

/// Changes arguments that would end this program, or reach outside of the machine; `None`: do not make this call.
fn tame(call: SystemCall, mut arguments: [usize; 6], areas: &Areas, random: &mut Random) -> Option<[usize; 6]> {
    let pages = PLAYGROUND + random.below(64) * 4096 + if random.one_in(4) { random.below(4096) } else { 0 };
    match call {
        SystemCall::Exit
        | SystemCall::ExitGroup
        | SystemCall::Clone
        | SystemCall::CloneWith
        | SystemCall::WorkerCreate
        | SystemCall::InterruptHandler => {
            return None;
        }
        // These paths name no programs, but random calls could make one; strings that are never paths.
        SystemCall::Execute | SystemCall::Spawn => {
            arguments[0] = random.of(&[0, 1, areas.input + 3 * STEP, areas.input + 7 * STEP])
        }
        SystemCall::ExecuteAt => {
            arguments[1] = random.of(&[0, 1, areas.input + 3 * STEP, areas.input + 7 * STEP]);
            // Without `AT_EMPTY_PATH`: an open file could be a program.
            arguments[4] = random.of(&[0, 1, 0x100, 1 << 31]);
        }
        // A byte for each page of a long range would be written over everything behind the area.
        SystemCall::Residence => arguments[1] = random.of(&[0, 1, 4096, 1 << 20, usize::MAX]),
        SystemCall::SetLimit if matches!(arguments[0] as u32, limit::DESCRIPTORS | limit::KERNEL_MEMORY) => {
            arguments[1] = random.of(&[0, 1, usize::MAX, 0xffff_ffc0_8020_0000])
        }
        SystemCall::Kill | SystemCall::KillThread | SystemCall::SignalQueue => {
            arguments[1] = random.of(&[0, 65, 1 << 20, usize::MAX])
        }
        // Queues of messages never wait, and tell this program by no signal that would end it.
        SystemCall::QueueOpen => {
            arguments[1] = random.of(&[0o4102, 0o4000, 0o4001, 0o4002]);
            arguments[3] = 0;
        }
        SystemCall::QueueAttributes | SystemCall::QueueNotify => {
            arguments[1] = random.of(&[0, 1, usize::MAX, 0xffff_ffc0_8020_0000])
        }
        // A few sets, which stay.
        SystemCall::SemaphoreGet => arguments[0] = 1 + random.below(4),
        // Values would be written to any address.
        SystemCall::SemaphoreControl => arguments[3] = areas.output + random.below(AREA / STEP) * STEP,
        // A few segments, which stay, and none in the place of this program's memory.
        SystemCall::SegmentGet => arguments[0] = 1 + random.below(4),
        SystemCall::SegmentAttach => arguments[2] &= !0o40000,
        // The descriptor can be one of this program.
        SystemCall::SignalProcessFile => arguments[1] = random.of(&[0, 65, 1 << 20, usize::MAX]),
        SystemCall::KillThreadOf | SystemCall::SignalQueueThread => {
            arguments[2] = random.of(&[0, 65, 1 << 20, usize::MAX])
        }
        // Frames and handlers at random addresses would end this program, and a wait without a limit would keep it.
        SystemCall::SignalReturn | SystemCall::SignalSuspend => return None,
        SystemCall::SignalAction => arguments[1] = random.of(&[0, 1, usize::MAX, 0xffff_ffc0_8020_0000]),
        SystemCall::SignalWait => arguments[2] = random.of(&[1, usize::MAX, 0xffff_ffc0_8020_0000]),
        // With a low limit of its own it could not make the files of its last check.
        SystemCall::ProcessLimit if matches!(arguments[1] as u32, limit::DESCRIPTORS | limit::KERNEL_MEMORY) => {
            arguments[2] = random.of(&[0, 1, usize::MAX, 0xffff_ffc0_8020_0000])
        }
        SystemCall::Socket | SystemCall::SocketPair => {
            arguments[0] = random.of(&[1, 1, 1, 2, 10, 16, arguments[0]]);
            arguments[1] = random.of(&[1, 2, 5, 3]) | random.of(&[0, 0o4000, 0o2000000, 8]);
            arguments[2] = random.of(&[0, 0, 1, 6, 17, arguments[2]]);
        }
        // Abstract names of some lengths, and paths.
        SystemCall::Bind | SystemCall::Connect => arguments[2] = random.of(&[2, 4, 6, 16, 40, 110, arguments[2]]),
        SystemCall::SendTo => arguments[5] = random.of(&[0, 4, 6, 16, 40, arguments[5]]),
        SystemCall::Reboot => arguments[0] = 0,
        // As another user it could neither remove nor make the files of its last check.
        SystemCall::SetUser | SystemCall::SetFileUser => arguments[0] = random.of(&[0, usize::MAX]),
        SystemCall::SetUserPair | SystemCall::SetUserTriple => {
            arguments.iter_mut().for_each(|user| *user = random.of(&[0, usize::MAX]));
        }
        // The end of a thread changes memory there.
        SystemCall::SetThreadIdAddress => arguments[0] = areas.output + random.below(AREA / STEP) * STEP,
        SystemCall::SetRobustList => arguments[0] = areas.output + random.below(AREA / STEP) * STEP,
        // A valid line would be printed.
        SystemCall::Log => arguments[..2].copy_from_slice(&[areas.output + AREA - 3, 4 + random.below(1000)]),
        SystemCall::WorkerWait => arguments[1] = random.below(100_000),
        // Advice may take contents away, as unmapping does.
        SystemCall::Unmap | SystemCall::Protect | SystemCall::AdviseMemory => {
            arguments[0] = random.of(&[pages, pages, pages, 1, usize::MAX, 0xffff_ffc0_8020_0000]);
            // A longer range could reach the stack.
            arguments[1] = random.of(&[0, 1, 4096, 8192, 1 << 20, usize::MAX]);
            if arguments[0] == 1 {
                arguments[1] = 4096;
            } else if arguments[0] == pages {
                arguments[1] = arguments[1].min(1 << 20);
            }
        }
        SystemCall::Remap => {
            arguments[0] = random.of(&[pages, pages, pages + 4096, 1, usize::MAX, 0xffff_ffc0_8020_0000]);
            arguments[1] = random.of(&[0, 1, 4096, 8192, 1 << 20]);
            arguments[2] = random.of(&[0, 1, 4096, 8192, 1 << 20, usize::MAX]);
            // A place of its choice could be the stack's.
            arguments[3] = random.of(&[0, 1, 1, 2, 4]);
        }
        SystemCall::Map => {
            let flags = random.of(&[mapping::PRIVATE, mapping::PRIVATE, mapping::SHARED, 0, 3]) as usize
                | random.of(&[mapping::ANONYMOUS, mapping::ANONYMOUS, 0]) as usize
                | random.of(&[mapping::FIXED, 0, mapping::FIXED_NOREPLACE, mapping::NORESERVE, 1 << 30]) as usize;
            arguments = [
                pages,
                random.of(&[0, 1, 4096, 65536, 1 << 20, 1 << 37, usize::MAX]),
                random.below(16),
                flags,
                arguments[4],
                arguments[5],
            ];
            if flags & mapping::FIXED as usize != 0 {
                arguments[1] = arguments[1].min(1 << 20);
            }
        }
        SystemCall::Unlink | SystemCall::MakeDirectory => arguments[1] = areas.own_path(random),
        SystemCall::MakeNode => {
            arguments[1] = areas.own_path(random);
            arguments[2] = random.of(&[0o010_644, 0o010_000, 0o100_644, 0o020_666, 0o140_777, arguments[2]]);
        }
        // A first file system that is read-only would refuse the files of its last check.
        SystemCall::Mount => arguments[3] &= !(mounting::flag::REMOUNT as usize),
        SystemCall::Link | SystemCall::Rename => {
            (arguments[1], arguments[3]) = (areas.own_path(random), areas.own_path(random));
        }
        SystemCall::SymbolicLink => arguments[2] = areas.own_path(random),
        SystemCall::Allocate => {
            arguments[1] = random.below(4);
            arguments[3] = random.of(&[0, 1, 4096, 100_000, 1 << 62, usize::MAX]);
        }
        // Large files must be refused by the file system, not by the lack of memory.
        // Its own output stays open.
        SystemCall::CloseRange => arguments[0] = 3 + random.below(60),
        SystemCall::TruncateAt => {
            (arguments[0], arguments[1]) = (areas.own_path(random), random.of(&[0, 100, 65536, 1 << 62, usize::MAX]));
        }
        // Its programs stay executable.
        SystemCall::ChangeModeAt | SystemCall::ChangeModeWith => arguments[1] = areas.own_path(random),
        SystemCall::Truncate => arguments[1] = random.of(&[0, 100, 65536, 1 << 62, usize::MAX]),
        SystemCall::WriteAt => arguments[3] = random.of(&[0, 100, 65536, 1 << 62, usize::MAX]),
        SystemCall::Seek => arguments[1] = random.of(&[0, 100, 65536, usize::MAX, 1 << 62]),
        _ => {}
    }
    Some(arguments)
}

/// A request ring, and this program's side of it.
struct Ring {
    requests: Requests<'static>,
    producer: Producer,
}

/// Entries of the ring.
const ENTRIES: usize = 64;

impl Ring {
    fn new() -> Option<Ring> {
        let address = unix::worker::ring_setup(ENTRIES, 0).ok()?;
        // SAFETY: the kernel has mapped the ring there; every word of it is atomic.
        let requests = unsafe {
            let entries = (address + request::ENTRIES_OFFSET) as *const request::Entry;
            Requests::new(&*(address as *const RequestHeader), core::slice::from_raw_parts(entries, ENTRIES))
        };
        Some(Ring { requests, producer: Producer::new(ENTRIES) })
    }

    /// Makes a call through the ring; without room it is not made.
    fn submit(&mut self, number: usize, arguments: [usize; 6], random: &mut Random) {
        let mut call = unix::raw::asynchronous_number(number, random.next() as u8) as u64;
        if random.one_in(20) {
            call |= 1 << (16 + random.below(48));
        }
        let request =
            Request { call, token: random.next() % 4096, arguments: arguments.map(|argument| argument as u64) };
        let _ = self.requests.submit(&mut self.producer, request, random.next() % 70);
        let header = self.requests.header();
        if random.one_in(100) {
            for word in [&header.head, &header.state, &header.capacity, &header.urgency] {
                word.store(random.next() >> random.below(64), core::sync::atomic::Ordering::Relaxed);
            }
        }
        if random.one_in(16) {
            let _ = unix::worker::ring_enter(0, random.below(2));
        }
    }
}

/// Makes one call. Any answer is right.
fn step(areas: &Areas, ring: &mut Option<Ring>, random: &mut Random) {
    let number = if random.one_in(50) {
        random.next() as usize >> random.below(64)
    } else {
        random.of(SystemCall::ALL) as usize
    };
    let Some(call) = SystemCall::from_number(number & NUMBER_MASK) else {
        // SAFETY: there is no call with this number.
        unsafe { syscall(number, [random.next() as usize; 6]) };
        return;
    };
    let mut arguments = [0; 6];
    for (argument, (_, kind)) in arguments.iter_mut().zip(call.arguments()) {
        *argument = match if random.one_in(20) { Argument::Number } else { *kind } {
            Argument::Number => Areas::number(random),
            Argument::Descriptor => Areas::descriptor(random),
            Argument::Input | Argument::Path => areas.input(random),
            Argument::Output => areas.output(random),
            Argument::Length => Areas::length(random),
        };
    }
    // Pointers that are really numbers could hit any memory: not where the kernel writes.
    for (argument, (_, kind)) in arguments.iter_mut().zip(call.arguments()) {
        let ours = areas.input..areas.output + AREA;
        let known_bad =
            *argument < 0x10000 || *argument >= 0x3f_ffff_ffff || ours.contains(argument) || *argument == PLAYGROUND;
        let image = kernel_s(auxiliary::SYSINFO_EHDR);
        let known_bad = known_bad || *argument == image || *argument == kernel_s(auxiliary::COPS_GLOBAL_PAGE);
        if matches!(kind, Argument::Output) && !known_bad && *argument != own_code() && *argument != 0x10000 {
            *argument = areas.output;
        }
    }
    if let Some(arguments) = tame(call, arguments, areas, random) {
        if let Some(ring) = ring
            && random.one_in(4)
        {
            ring.submit(call as usize, arguments, random);
            return;
        }
        // SAFETY: the kernel may write to the output area and the shared pages, on which no code here relies; mapping
        // calls reach the playground only.
        unsafe {
            if call.waiting() == Waiting::Possible && call != SystemCall::WorkerWait || random.one_in(8) {
                let token = random.next() % 4096;
                syscall_asynchronous(call as usize, arguments, random.next(), random.next() as u8, token);
            } else {
                syscall(call as usize, arguments);
            }
        }
    }
}

/// Threads and processes that make calls beside the first worker, and the share of the calls that each makes.
const THREADS: usize = 2;
const PROCESSES: usize = 2;
const SHARE: u64 = 8;
/// Bytes of a thread's stack.
const STACK: usize = 64 * 1024;
/// Longest time for which the others are waited for when the first worker's calls are made.
const PATIENCE_NS: u64 = 120_000_000_000;

/// Seed and number of the calls of the next thread, and the addresses of the areas.
static SEED: AtomicU64 = AtomicU64::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);
static AREA_OF_ALL: AtomicUsize = AtomicUsize::new(0);
/// Number of threads that have made their calls.
static DONE: AtomicU32 = AtomicU32::new(0);
/// Place of the threads' numbers, which nothing reads.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Makes a thread's calls. It has no memory of its own but its stack: its thread pointer is 0.
extern "C" fn run_thread(index: usize) -> ! {
    let input = AREA_OF_ALL.load(Ordering::Acquire);
    let areas = Areas { input, output: input + AREA };
    let mut random = Random(SEED.load(Ordering::Relaxed) ^ (index as u64 + 1) << 40 | 1);
    for _ in 0..COUNT.load(Ordering::Relaxed) {
        step(&areas, &mut None, &mut random);
    }
    // Words that random calls have named must not be changed at the thread's end.
    // SAFETY: both calls only forget an address.
    unsafe {
        syscall(SystemCall::SetThreadIdAddress as usize, [0; 6]);
        syscall(SystemCall::SetRobustList as usize, [0, ROBUST_HEAD, 0, 0, 0, 0]);
    }
    DONE.fetch_add(1, Ordering::Release);
    unix::thread::futex_wake(&DONE, 1);
    unix::worker::exit()
}

/// The threads and processes that make calls beside the first worker.
struct Others {
    threads: u32,
    processes: [u32; PROCESSES],
}

impl Others {
    /// Starts them. One for which there is no room is left out: other programs may use up what there is.
    fn start(seed: u64, count: u64, areas: &Areas, random: &mut Random) -> Others {
        let mut others = Others { threads: 0, processes: [0; PROCESSES] };
        SEED.store(seed.wrapping_mul(2) + 1, Ordering::Relaxed);
        COUNT.store(count / SHARE, Ordering::Relaxed);
        AREA_OF_ALL.store(areas.input, Ordering::Release);
        for index in 0..THREADS {
            let Ok(stack) = unix::memory::map(STACK) else { break };
            // SAFETY: the stack is the thread's for ever.
            let thread = unsafe { unix::thread::start(run_thread, index, stack.wrapping_add(STACK), 0, &NUMBER) };
            others.threads += u32::from(thread.is_ok());
        }
        // Shared by all: both ends of a pipe, and a counter.
        let (Ok((reader, writer)), Ok(counter)) = (unix::file::pipe(0), unix::readiness::event_counter(0, 0)) else {
            return others;
        };
        for process in &mut others.processes {
            let (mut seed, mut number) = (Text::default(), Text::default());
            let written = write!(seed, "{}\0", random.next() >> 32).and(write!(number, "{}\0", count / SHARE));
            let words = [c"fuzz".as_ptr(), seed.as_ptr(), number.as_ptr(), c"shared".as_ptr(), core::ptr::null()];
            // SAFETY: the words are strings with their NUL, and live through the call.
            let lists = unsafe { (StringList::new(&words), StringList::new(&words[4..])) };
            let (Ok(()), (Some(words), Some(none))) = (written, lists) else { break };
            let shared = [reader.raw(), writer.raw(), counter.raw()];
            *process = unix::process::spawn(c"/bin/fuzz", words, none, shared, 4).unwrap_or(0);
        }
        // Random calls may use them, and close them.
        let _ = (reader.into_raw(), writer.into_raw(), counter.into_raw());
        others
    }

    /// Waits until all of them have made their calls; returns whether they have, and have found that calls work.
    fn join(self) -> bool {
        let deadline = now_ns().saturating_add(PATIENCE_NS);
        loop {
            let done = DONE.load(Ordering::Acquire);
            if done == self.threads {
                break;
            }
            if now_ns() >= deadline {
                return false;
            }
            let _ = unix::thread::futex_wait(&DONE, done, Some(10_000_000));
        }
        self.processes.into_iter().filter(|&process| process != 0).fold(true, |all, process| {
            let is_well = wait_for(process, deadline);
            all && is_well
        })
    }
}

fn now_ns() -> u64 {
    let now = unix::system::time(MONOTONIC).unwrap_or_default();
    now.seconds as u64 * 1_000_000_000 + now.nanoseconds as u64
}

/// Waits for the end of a process; kills it at the deadline. Returns whether it was well.
fn wait_for(process: u32, deadline: u64) -> bool {
    loop {
        match unix::process::wait(Child::Process(process), WNOHANG) {
            Ok(None) if now_ns() < deadline => drop(unix::system::sleep(TimeSpec::from_ns(5_000_000))),
            Ok(None) => {
                let _ = unix::process::kill(process, signal::KILL);
                let _ = unix::process::wait(Child::Process(process), 0);
                return false;
            }
            Ok(Some((_, ending))) => return ending == Ending::Exited(0),
            // A random call has waited for it.
            Err(error) => return error == unix::Errno::ECHILD,
        }
    }
}

/// A short text, ended by a NUL.
#[derive(Default)]
struct Text {
    bytes: [u8; 24],
    length: usize,
}

impl Text {
    fn as_ptr(&self) -> *const core::ffi::c_char {
        self.bytes.as_ptr().cast()
    }
}

impl core::fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let place = self.bytes.get_mut(self.length..self.length + text.len()).ok_or(core::fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.length += text.len();
        Ok(())
    }
}

/// Returns the number of the first thing that does not work any more; 0 if all do.
fn first_defect() -> i32 {
    // SAFETY: an unknown number.
    if decode(unsafe { syscall(0xfff, [0; 6]) }) != Err(unix::Errno::ENOSYS) {
        return 1;
    }
    let (reader, writer) = match unix::file::pipe(0) {
        Ok(ends) => ends,
        Err(error) => return 100 + error.number() as i32,
    };
    let mut buffer = [0; 4];
    if unix::file::write(writer.raw(), b"ping") != Ok(4) {
        return 6;
    }
    if unix::file::read(reader.raw(), &mut buffer) != Ok(4) || buffer != *b"ping" {
        return 7;
    }
    if unix::process::number() == 0 { 8 } else { 0 }
}

fn main() -> i32 {
    let mut numbers = unix::start::arguments().skip(1).map(|text| text.to_str().ok()?.parse::<u64>().ok());
    let (Some(Some(seed)), Some(Some(count))) = (numbers.next(), numbers.next()) else {
        unix::eprintln!("usage: fuzz SEED COUNT");
        return 2;
    };
    let is_shared = unix::start::arguments().nth(3).is_some();
    let mut random = Random(seed.wrapping_mul(2) + 1);
    let Some(areas) = Areas::new(&mut random) else { return 3 };
    // Random bytes must not reach the console. A process that shares its first descriptors has none of it.
    if !is_shared && let Ok(null) = unix::file::open(c"/dev/null", open::RDWR, 0) {
        for descriptor in 0..3 {
            let _ = unix::file::duplicate_to(null.raw(), descriptor, 0);
        }
    }
    let ring_address = kernel_s(auxiliary::COPS_COMPLETION_RING);
    // SAFETY: the kernel maps the ring there for the process's life; every word of it is atomic.
    let ring = unsafe {
        let entries = (ring_address + completion::ENTRIES_OFFSET) as *const completion::Entry;
        let entries = core::slice::from_raw_parts(entries, completion::INITIAL_CAPACITY);
        Completions::new(&*(ring_address as *const CompletionHeader), entries)
    };
    let mut requests = Ring::new();
    let others = if is_shared { None } else { Some(Others::start(seed, count, &areas, &mut random)) };
    for turn in 0..if is_shared { count } else { count / 2 } {
        step(&areas, &mut requests, &mut random);
        if turn % 64 == 0 {
            while ring.take().is_some() {}
        }
        if turn % 4096 == 0 {
            // Calls that wait for ever would accumulate to the limit.
            for token in 0..4096u64 {
                let _ = unix::worker::cancel(token);
            }
        }
    }
    if others.is_some_and(|others| !others.join()) {
        return 4;
    }
    // Room for the final check: all descriptors may be in use.
    for descriptor in 3..32 {
        drop(unix::Descriptor::from_raw(descriptor));
    }
    // The files of a process that shares are removed by the one that has started it.
    for path in OWN_PATHS.iter().filter(|_| !is_shared) {
        let mut text = [0; LONGEST_PATH];
        let bytes = path.to_bytes();
        text[..bytes.len()].copy_from_slice(bytes);
        remove(&mut text, bytes.len());
    }
    first_defect()
}
