//! Failing allocations of the kernel: every call, with each of its allocations failing in turn.
//!
//! These tests need the kernel that fails allocations on request ([`FAIL_ALLOCATION`]). A call is prepared and made
//! again and again, with its first allocation failing, its second, and so on until it has fewer allocations. Each time
//! the call reports a lack of memory, or succeeds without the allocation; the machine's resources are as before, and
//! calls still work. A kernel that relies on an allocation without checking it panics.
//!
//! Calls are made in a process that has made them before, where no resource may be missing afterwards; and each in a
//! process of its own, where tables grow and pages are made that later calls would find, and where the effects of a
//! call on its process do not matter.

use abi_unix::authority::Held;
use abi_unix::errno::decode;
use abi_unix::types::system_scheduling::FAIL_ALLOCATION;
use abi_unix::types::{
    self, AT_FDCWD, AT_REMOVEDIR, MessageHeader, SHUT_RDWR, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_SEQPACKET, SOCK_STREAM,
    SocketAddress, TimeSpec, clock, control, epoll, futex, limit, mapping, message, open, protection, scheduling,
    socket_option, terminal, wait_kind,
};
use abi_unix::{Counter, Errno, SystemCall, WILL_BE_POSTED, trace};
use alloc::string::String;
use alloc::vec::Vec;
use cops::process::{Command, Ending};
use cops::system::{self, Descriptor, Result, file, network, process};
use cops::{eprintln, println};
use core::ffi::CStr;
use core::net::SocketAddr;
use core::sync::atomic::AtomicU32;

use crate::harness::{self, Outcome, call};
use crate::ring::Raw;
use crate::{check, must};

/// The objects of a call: everything that it needs is made before, and dropped with this.
struct State {
    files: Vec<Descriptor>,
    /// Pages that are mapped.
    area: Vec<u64>,
    /// A mapping, with its length in bytes.
    mapped: Option<(usize, usize)>,
    /// A process that was started and not waited for; 0 for none.
    child: u32,
}

/// Bytes of the area.
const AREA: usize = 256 * 1024;
/// Offset in the area to which calls write.
const OUTPUT: usize = AREA / 2;

impl State {
    fn new() -> State {
        State { files: Vec::with_capacity(16), area: alloc::vec![1; AREA / 8], mapped: None, child: 0 }
    }

    /// Returns the address of a place in the area.
    fn at(&self, offset: usize) -> usize {
        self.area.as_ptr() as usize + offset
    }

    /// Writes words to the area, and returns their address.
    fn put(&mut self, offset: usize, words: &[usize]) -> usize {
        for (place, word) in self.area[offset / 8..].iter_mut().zip(words) {
            *place = *word as u64;
        }
        self.at(offset)
    }

    fn put_bytes(&mut self, offset: usize, bytes: &[u8]) -> usize {
        for (place, word) in self.area[offset / 8..].iter_mut().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            *place = u64::from_le_bytes(padded);
        }
        self.at(offset)
    }

    fn put_time(&mut self, ns: u64) -> usize {
        self.put_bytes(64, &TimeSpec::from_ns(ns).to_bytes())
    }

    fn put_address(&mut self, offset: usize, address: SocketAddr) -> usize {
        self.put_bytes(offset, &types::bytes_of_address(address).0)
    }

    fn keep(&mut self, descriptor: Descriptor) -> usize {
        let number = descriptor.raw() as usize;
        self.files.push(descriptor);
        number
    }

    fn open(&mut self, path: &CStr, flags: u32) -> Result<usize> {
        let descriptor = file::open(path, flags, 0o644)?;
        Ok(self.keep(descriptor))
    }

    /// Opens a file of two pages.
    fn file(&mut self) -> Result<usize> {
        let number = self.open(FILE, open::CREAT | open::TRUNC | open::RDWR)?;
        file::write_at(number as i32, &[7; 8192], 0)?;
        Ok(number)
    }

    /// Makes a pipe with bytes in it; returns both ends.
    fn pipe(&mut self, bytes: usize) -> Result<(usize, usize)> {
        let (reader, writer) = file::pipe(0)?;
        if bytes > 0 {
            file::write(writer.raw(), &alloc::vec![1; bytes])?;
        }
        Ok((self.keep(reader), self.keep(writer)))
    }

    fn socket(&mut self, kind: u32) -> Result<usize> {
        let socket = network::socket(kind)?;
        Ok(self.keep(socket))
    }

    fn listener(&mut self) -> Result<(usize, SocketAddr)> {
        let socket = self.socket(SOCK_STREAM)?;
        network::bind(socket as i32, ANY)?;
        network::listen(socket as i32, 8)?;
        Ok((socket, network::local_address(socket as i32)?))
    }

    /// Makes a connection; returns both sides.
    fn connection(&mut self) -> Result<(usize, usize)> {
        let (listener, address) = self.listener()?;
        let client = self.socket(SOCK_STREAM)?;
        network::connect(client as i32, address)?;
        let (server, _) = network::accept(listener as i32)?;
        Ok((client, self.keep(server)))
    }

    /// Makes a socket for datagrams; returns its address too.
    fn datagrams(&mut self) -> Result<(usize, SocketAddr)> {
        let socket = self.socket(SOCK_DGRAM)?;
        network::bind(socket as i32, ANY)?;
        Ok((socket, network::local_address(socket as i32)?))
    }

    /// Makes a pair of local sockets.
    /// Makes a local socket, and puts the address of a name into memory; returns it with its size.
    fn local_name(&mut self, kind: u32, name: &[u8]) -> Result<(usize, usize, usize)> {
        let socket = network::local_socket(kind)?;
        let address = network::LocalAddress::new(name)?;
        Ok((self.keep(socket), self.put_bytes(0, address.bytes()), address.bytes().len()))
    }

    /// Makes a local socket with the abstract name of these tests, which listens if that is for its kind.
    fn named(&mut self, kind: u32) -> Result<usize> {
        let socket = network::local_socket(kind)?;
        network::bind_local(socket.raw(), &network::LocalAddress::new(NAME)?)?;
        if kind != SOCK_DGRAM {
            network::listen(socket.raw(), 8)?;
        }
        Ok(self.keep(socket))
    }

    fn local(&mut self, kind: u32) -> Result<(usize, usize)> {
        let (first, second) = network::socket_pair(kind)?;
        Ok((self.keep(first), self.keep(second)))
    }

    /// Writes the header of a message in eight buffers of so many bytes, with control messages of an address and a
    /// length; returns its address.
    fn message(&mut self, bytes: usize, control: (usize, usize)) -> usize {
        let part = self.at(OUTPUT + 4096);
        let list: Vec<usize> = (0..8).flat_map(|_| [part, bytes / 8]).collect();
        let header = MessageHeader {
            buffers: self.put(0, &list) as u64,
            count: 8,
            control: control.0 as u64,
            control_length: control.1 as u64,
            ..MessageHeader::default()
        };
        self.put_bytes(128, &header.to_bytes())
    }

    fn epoll(&mut self) -> Result<usize> {
        let number = call(SystemCall::EpollCreate, [0; 6])?;
        Ok(self.keep(Descriptor::from_result(number)))
    }

    /// Makes a queue for events of files.
    fn events(&mut self) -> Result<usize> {
        let number = call(SystemCall::EventFile, [0; 6])?;
        Ok(self.keep(Descriptor::from_result(number)))
    }

    /// Makes an epoll instance that watches the reading end of a pipe.
    fn watching(&mut self, bytes: usize) -> Result<(usize, usize)> {
        let (epoll, (reader, _)) = (self.epoll()?, self.pipe(bytes)?);
        let event = self.put_bytes(0, &event());
        call(SystemCall::EpollControl, [epoll, epoll::CTL_ADD as usize, reader, event, 0, 0])?;
        Ok((epoll, reader))
    }

    fn receiver(&mut self) -> Result<usize> {
        let receiver = system::interrupt::receiver(40)?;
        Ok(self.keep(receiver))
    }

    fn right(&mut self) -> Result<usize> {
        let receiver = system::interrupt::receiver(40)?;
        let right = system::interrupt::grant(&receiver)?;
        self.keep(receiver);
        Ok(self.keep(right))
    }

    /// Returns the arguments that start a small process that ends at once: path, arguments, environment, descriptors.
    fn program(&mut self) -> [usize; 4] {
        let path = SMALL_PROGRAM.as_ptr() as usize;
        [path, self.put(0, &[path, 0]), self.at(8), self.put(128, &[usize::MAX, u32::MAX as usize])]
    }

    /// Makes a timer of `timer_create`, unless the last script has left one; returns its number, which is 0.
    fn timer(&mut self) -> Result<usize> {
        let place = self.at(OUTPUT);
        if call(SystemCall::TimerGet, [0, place, 0, 0, 0, 0]).is_err() {
            call(SystemCall::TimerCreate, [clock::MONOTONIC as usize, 0, place, 0, 0, 0])?;
        }
        Ok(0)
    }

    /// Starts a process that sleeps until it is killed.
    fn start_sleeper(&mut self) -> Result<u32> {
        self.child = harness::act("sleep")?.number();
        Ok(self.child)
    }

    /// Starts a process that ends at once.
    fn start(&mut self) -> Result<u32> {
        let [path, arguments, environment, descriptors] = self.program();
        let number = call(SystemCall::Spawn, [path, arguments, environment, descriptors, 5, 0])?;
        self.child = number as u32;
        Ok(self.child)
    }

    /// Maps pages without touching them.
    fn fresh(&mut self, bytes: usize) -> Result<usize> {
        let address = system::memory::map(bytes)? as usize;
        self.mapped = Some((address, bytes));
        Ok(address)
    }

    /// Maps a stack whose first page is there, so that it needs none while an allocation fails; returns its end. The
    /// mapping stays until the process ends: a thread may not have begun when the script is over.
    fn stack(&mut self) -> Result<usize> {
        let end = self.fresh(8192)? + 8192;
        self.mapped = None;
        // SAFETY: the mapping is new.
        unsafe { (end as *mut u64).sub(1).write_volatile(0) };
        Ok(end)
    }

    /// Frees all objects of a script. (A failed call may have left the object that it was to remove.)
    fn clear(&mut self) {
        self.files.clear();
        if let Some((address, bytes)) = self.mapped.take() {
            // SAFETY: no other code uses the mapping.
            let _ = unsafe { system::memory::unmap(address as *mut u8, bytes) };
        }
        if self.child != 0 {
            let child = core::mem::take(&mut self.child);
            let _ = process::kill(child, abi_unix::types::signal::KILL);
            let _ = process::wait(process::Child::Process(child), 0);
        }
        let _ = file::unlink(FILE, 0);
        let _ = file::unlink(OTHER, 0);
        let _ = file::unlink(OTHER, AT_REMOVEDIR);
    }
}

/// Few pages: each is an allocation that fails.
const SMALL_PROGRAM: &CStr = c"/bin/hello";
const OWN_PATH: &CStr = c"/bin/tests";
const FILE: &CStr = c"/tmp/allocation";
/// The abstract name of local sockets.
const NAME: &[u8] = b"\0failing allocations";
const OTHER: &CStr = c"/tmp/allocation-2";
const ANY: SocketAddress = SocketAddress { address: [127, 0, 0, 1], port: 0 };
const HERE: usize = AT_FDCWD as usize;

fn event() -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&epoll::IN.to_le_bytes());
    bytes
}

/// The way in which a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Synchronously,
    Asynchronously,
    ThroughTheRing,
}

/// A call with its preparation and its clean-up.
struct Script {
    call: SystemCall,
    what: &'static str,
    /// Whether a synchronous call would wait for ever.
    waits: bool,
    prepare: fn(&mut State) -> Result<[usize; 6]>,
    /// Undoes the call's effect.
    undo: fn(&mut State, usize) -> Result<()>,
}

impl Script {
    /// Returns whether another program takes the place of the caller.
    fn executes(&self) -> bool {
        matches!(self.call, SystemCall::Execute | SystemCall::ExecuteAt)
    }
}

fn nothing(_: &mut State, _: usize) -> Result<()> {
    Ok(())
}

/// Closes the descriptor that the call has opened.
fn close(_: &mut State, descriptor: usize) -> Result<()> {
    Descriptor::from_result(descriptor).close()
}

/// Closes the two descriptors that the call has written.
fn close_both(state: &mut State, _: usize) -> Result<()> {
    let both = state.area[OUTPUT / 8];
    close(state, both as u32 as usize).and(close(state, (both >> 32) as usize))
}

/// Closes the descriptor of the file that the call has received with a message ([`State::message`]). Without memory for
/// it the file is closed, and the control messages are cut off.
fn close_received(state: &mut State, _: usize) -> Result<()> {
    match state.area[(128 + MessageHeader::CONTROL_LENGTH) / 8] {
        0 => Ok(()),
        _ => close(state, state.area[OUTPUT / 8 + 2] as u32 as usize),
    }
}

fn remove(_: &mut State, _: usize) -> Result<()> {
    file::unlink(OTHER, 0)
}

fn remove_directory(_: &mut State, _: usize) -> Result<()> {
    file::unlink(OTHER, AT_REMOVEDIR)
}

fn delete_timer(_: &mut State, _: usize) -> Result<()> {
    call(SystemCall::TimerDelete, [0; 6]).map(drop)
}

fn remove_semaphores(_: &mut State, set: usize) -> Result<()> {
    call(SystemCall::SemaphoreControl, [set, 0, 0, 0, 0, 0]).map(drop)
}

fn remove_segment(_: &mut State, segment: usize) -> Result<()> {
    call(SystemCall::SegmentControl, [segment, 0, 0, 0, 0, 0]).map(drop)
}

fn detach(_: &mut State, address: usize) -> Result<()> {
    call(SystemCall::SegmentDetach, [address, 0, 0, 0, 0, 0]).map(drop)
}

fn wait_for(_: &mut State, number: usize) -> Result<()> {
    process::wait(process::Child::Process(number as u32), 0).map(drop)
}

/// Returns the arguments of a call, the others being 0.
fn with<const N: usize>(arguments: [usize; N]) -> Result<[usize; 6]> {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    Ok(all)
}

fn path(path: &CStr) -> usize {
    path.as_ptr() as usize
}

extern "C" fn leave(_: usize, _: usize) -> ! {
    system::worker::exit()
}

macro_rules! scripts {
    ($($call:ident $what:literal $($waits:ident)?: $prepare:expr, $undo:expr;)*) => {
        &[$(Script {
            call: SystemCall::$call,
            what: $what,
            waits: scripts!(@ $($waits)?),
            prepare: $prepare,
            undo: $undo,
        }),*]
    };
    (@) => { false };
    (@ waits) => { true };
}

/// Name of an extended attribute.
const ATTRIBUTE: &CStr = c"user.a";

/// Calls that leave the process unchanged.
const SCRIPTS: &[Script] = scripts![
    SetAttribute "": |state| with([path(OWN_PATH), path(ATTRIBUTE), state.at(0), 8, 0]), nothing;
    SetAttributeOfLink "": |state| with([path(OWN_PATH), path(ATTRIBUTE), state.at(0), 8, 0]), nothing;
    SetAttributeOfFile "": |state| with([state.file()?, path(ATTRIBUTE), state.at(0), 8, 0]), nothing;
    GetAttribute "": |state| with([path(OWN_PATH), path(ATTRIBUTE), state.at(OUTPUT), 8]), nothing;
    GetAttributeOfLink "": |state| with([path(OWN_PATH), path(ATTRIBUTE), state.at(OUTPUT), 8]), nothing;
    GetAttributeOfFile "": |state| with([state.file()?, path(ATTRIBUTE), state.at(OUTPUT), 8]), nothing;
    ListAttributes "": |state| with([path(OWN_PATH), state.at(OUTPUT), 8]), nothing;
    ListAttributesOfLink "": |state| with([path(OWN_PATH), state.at(OUTPUT), 8]), nothing;
    ListAttributesOfFile "": |state| with([state.file()?, state.at(OUTPUT), 8]), nothing;
    RemoveAttribute "": |_| with([path(OWN_PATH), path(ATTRIBUTE)]), nothing;
    RemoveAttributeOfLink "": |_| with([path(OWN_PATH), path(ATTRIBUTE)]), nothing;
    RemoveAttributeOfFile "": |state| with([state.file()?, path(ATTRIBUTE)]), nothing;
    GetCurrentDirectory "": |state| with([state.at(OUTPUT), 100]), nothing;
    EventCounter "": |_| with([0, 0]), close;
    EventFile "": |_| with([0]), close;
    WatchFile "": |state| with([state.events()?, path(c"/tmp"), 0x100]), nothing;
    EndWatch "": |state| {
        let events = state.events()?;
        let watch = call(SystemCall::WatchFile, [events, path(c"/tmp"), 0x100, 0, 0, 0])?;
        with([events, watch])
    }, nothing;
    MemoryFile "": |_| with([path(FILE), 0]), close;
    EpollCreate "": |_| with([0]), close;
    EpollControl "adds": |state| {
        let (epoll, (reader, _)) = (state.epoll()?, state.pipe(0)?);
        with([epoll, epoll::CTL_ADD as usize, reader, state.put_bytes(0, &event())])
    }, nothing;
    EpollControl "changes": |state| {
        let (epoll, reader) = state.watching(0)?;
        with([epoll, epoll::CTL_MOD as usize, reader, state.at(0)])
    }, nothing;
    EpollControl "removes": |state| {
        let (epoll, reader) = state.watching(0)?;
        with([epoll, epoll::CTL_DEL as usize, reader, state.at(0)])
    }, nothing;
    EpollWait "something is ready": |state| {
        let (epoll, _) = state.watching(1)?;
        with([epoll, state.at(OUTPUT), 4, 1000, 0, 8])
    }, nothing;
    EpollWait "until a time": |state| {
        let (epoll, _) = state.watching(0)?;
        with([epoll, state.at(OUTPUT), 4, 1, 0, 8])
    }, nothing;
    EpollWait "without end" waits: |state| {
        let (epoll, _) = state.watching(0)?;
        with([epoll, state.at(OUTPUT), 4, usize::MAX, 0, 8])
    }, nothing;
    EpollWaitWith "until a time": |state| {
        let (epoll, _) = state.watching(0)?;
        let time = state.put_time(1_000_000);
        with([epoll, state.at(OUTPUT), 4, time, 0, 8])
    }, nothing;
    EpollWaitWith "without end" waits: |state| {
        let (epoll, _) = state.watching(0)?;
        with([epoll, state.at(OUTPUT), 4, 0, 0, 8])
    }, nothing;
    Duplicate "": |_| with([1]), close;
    DuplicateTo "far away": |_| with([1, 700, 0]), close;
    DuplicateTo "over a file": |state| {
        let file = state.file()?;
        with([1, file, 0])
    }, nothing;
    FileControl "duplicates": |_| with([1, control::DUPFD as usize, 600]), close;
    FileControl "locks": |state| {
        let file = state.file()?;
        with([file, control::SETLK as usize, state.put(0, &[1, 0, 10, 0])])
    }, nothing;
    FileControl "waits for a lock" waits: |state| {
        let file = state.file()?;
        call(SystemCall::FileControl, [file, control::OFD_SETLK as usize, state.put(0, &[1, 0, 10, 0]), 0, 0, 0])?;
        let other = state.open(FILE, open::RDWR)?;
        with([other, control::OFD_SETLKW as usize, state.at(0)])
    }, nothing;
    Lock "": |state| with([state.file()?, 2]), nothing;
    FileControl "flags": |_| with([1, control::GETFL as usize]), nothing;
    DeviceControl "": |state| with([0, terminal::GET as usize, state.at(OUTPUT)]), nothing;
    DeviceControl "a slave": |state| {
        let master = system::terminal::pseudo_terminal()?;
        with([state.keep(master), terminal::OPEN_PEER as usize, (open::RDWR | open::NOCTTY) as usize])
    }, close;
    SetNice "": |_| with([0, 0, 0]), nothing;
    GetNice "": |_| with([0, 0]), nothing;
    MakeNode "": |_| with([HERE, path(OTHER), 0o010_644]), remove;
    MakeDirectory "": |_| with([HERE, path(OTHER), 0o755]), remove_directory;
    Unlink "a file": |state| {
        state.file()?;
        file::unlink(OTHER, 0).or(Ok::<(), Errno>(()))?;
        state.open(OTHER, open::CREAT)?;
        with([HERE, path(OTHER), 0])
    }, nothing;
    Unlink "a directory": |_| {
        file::make_directory(OTHER, 0o755).or(Ok::<(), Errno>(()))?;
        with([HERE, path(OTHER), AT_REMOVEDIR as usize])
    }, nothing;
    SymbolicLink "": |_| with([path(FILE), HERE, path(OTHER)]), remove;
    Link "": |state| {
        state.file()?;
        with([HERE, path(FILE), HERE, path(OTHER), 0])
    }, remove;
    Allocate "pages": |state| with([state.file()?, 0, 100_000, 50_000]), nothing;
    Allocate "a hole": |state| with([state.file()?, 3, 100, 20_000]), nothing;
    Truncate "longer": |state| with([state.file()?, 1 << 20]), nothing;
    Truncate "shorter": |state| with([state.file()?, 100]), nothing;
    ChangeDirectoryTo "": |state| with([state.open(c"/tmp", open::DIRECTORY)?]), |_, _| file::change_directory(c"/");
    CloseRange "": |_| with([900, 1000, 0]), nothing;
    TruncateAt "": |state| {
        state.file()?;
        with([path(FILE), 1 << 20])
    }, nothing;
    ChangeMode "": |state| with([state.file()?, 0o600]), nothing;
    ChangeModeAt "": |state| {
        state.file()?;
        with([HERE, path(FILE), 0o644])
    }, nothing;
    ChangeModeWith "": |state| {
        state.file()?;
        with([HERE, path(FILE), 0o644, 0])
    }, nothing;
    ChangeOwner "": |state| with([state.file()?, 0, 0]), nothing;
    ChangeOwnerAt "": |state| {
        state.file()?;
        with([HERE, path(FILE), 0, 0, 0])
    }, nothing;
    SetTimes "": |state| {
        state.file()?;
        with([HERE, path(FILE), 0, 0])
    }, nothing;
    SetCreationMask "": |_| with([0]), nothing;
    Synchronise "": |_| with([]), nothing;
    SynchroniseFile "": |state| with([state.file()?]), nothing;
    SynchroniseData "": |state| with([state.file()?]), nothing;
    SynchroniseFileSystem "": |state| with([state.file()?]), nothing;
    AdviseFile "": |state| with([state.file()?, 0, 0, 0]), nothing;
    SynchroniseMemory "": |state| with([state.fresh(8192)?, 8192, 4]), nothing;
    LockMemory "": |state| with([state.fresh(8192)?, 8192]), nothing;
    LockMemoryWith "": |state| with([state.fresh(8192)?, 8192, 1]), nothing;
    LockAllMemory "": |_| with([3]), nothing;
    UnlockAllMemory "": |_| with([]), nothing;
    Residence "": |state| with([state.fresh(8192)?, 8192, state.at(OUTPUT)]), nothing;
    FlushInstructions "": |_| with([0, 0, 0]), nothing;
    SynchroniseRange "": |state| with([state.file()?, 0, 0, 7]), nothing;
    ReadAhead "": |state| with([state.file()?, 0, 4096]), nothing;
    Personality "": |_| with([0xffff_ffff]), nothing;
    SetClass "": |state| with([0, 0, state.put(0, &[0])]), nothing;
    SetClassPriority "": |state| with([0, state.put(0, &[0])]), nothing;
    GetClass "": |_| with([0]), nothing;
    GetClassPriority "": |state| with([0, state.at(OUTPUT)]), nothing;
    GreatestClassPriority "": |_| with([1]), nothing;
    LeastClassPriority "": |_| with([1]), nothing;
    GetSlice "": |state| with([0, state.at(OUTPUT)]), nothing;
    GetTimeOfDay "": |state| with([state.at(OUTPUT), 0]), nothing;
    GetLimit "": |state| with([limit::DESCRIPTORS as usize, state.at(OUTPUT)]), nothing;
    SetLimit "": |state| {
        let place = state.at(64);
        call(SystemCall::GetLimit, [limit::DESCRIPTORS as usize, place, 0, 0, 0, 0])?;
        with([limit::DESCRIPTORS as usize, place])
    }, nothing;
    ReadVectorWith "at a place": |state| {
        let (file, output) = (state.file()?, state.at(OUTPUT));
        with([file, state.put(0, &[output, 10, output + 10, 2000]), 2, 100])
    }, nothing;
    ReadVectorWith "at the position" waits: |state| {
        let ((reader, _), output) = (state.pipe(0)?, state.at(OUTPUT));
        with([reader, state.put(0, &[output, 10]), 1, usize::MAX])
    }, nothing;
    WriteVectorWith "": |state| {
        let (file, input) = (state.file()?, state.at(OUTPUT));
        with([file, state.put(0, &[input, 10, input, 5000]), 2, 100_000])
    }, nothing;
    UnlockMemory "": |state| with([state.fresh(8192)?, 8192]), nothing;
    AdviseMemory "little": |state| with([state.fresh(8192)?, 8192, 4]), nothing;
    AdviseMemory "much": |state| with([state.fresh(1 << 20)?, 1 << 20, 4]), nothing;
    AccessWith "": |_| with([HERE, path(OWN_PATH), 0, 0]), nothing;
    Access "": |_| with([HERE, path(OWN_PATH), 0]), nothing;
    ChangeDirectory "": |_| with([path(c"/tmp")]), |_, _| file::change_directory(c"/");
    Open "what is there": |state| {
        state.file()?;
        with([HERE, path(FILE), open::RDWR as usize, 0])
    }, close;
    Open "what is not there": |_| {
        with([HERE, path(OTHER), (open::CREAT | open::RDWR) as usize, 0o644])
    }, |state, number| close(state, number).and(remove(state, 0));
    Open "and shortens": |state| {
        state.file()?;
        with([HERE, path(FILE), (open::RDWR | open::TRUNC) as usize, 0])
    }, close;
    Open "a terminal": |_| with([HERE, path(c"/dev/console"), open::RDWR as usize, 0]), close;
    Open "the terminal of the session": |_| with([HERE, path(c"/dev/tty"), open::RDWR as usize, 0]), close;
    Open "a pseudo-terminal": |_| with([HERE, path(c"/dev/ptmx"), open::RDWR as usize, 0]), close;
    Open "a device": |_| with([HERE, path(c"/dev/zero"), open::RDWR as usize, 0]), close;
    Close "": |state| {
        state.file()?;
        with([state.files.pop().map_or(0, |file| file.into_raw() as usize)])
    }, nothing;
    Pipe "": |state| with([state.at(OUTPUT), 0]), close_both;
    ReadDirectory "": |state| with([state.open(c"/bin", open::DIRECTORY)?, state.at(OUTPUT), 4096]), nothing;
    Seek "": |state| with([state.file()?, 10, 0]), nothing;
    Read "a file": |state| with([state.file()?, state.at(OUTPUT), 8192]), nothing;
    Read "into pages that are not there": |state| with([state.file()?, state.fresh(8192)?, 8192]), nothing;
    Read "a pipe": |state| with([state.pipe(100)?.0, state.at(OUTPUT), 100]), nothing;
    Read "much of a pipe": |state| with([state.pipe(60_000)?.0, state.at(OUTPUT), 60_000]), nothing;
    Read "an empty pipe" waits: |state| with([state.pipe(0)?.0, state.at(OUTPUT), 100]), nothing;
    Read "an event counter" waits: |state| {
        let counter = system::readiness::event_counter(0, 0)?;
        with([state.keep(counter), state.at(OUTPUT), 8])
    }, nothing;
    Read "a socket": |state| {
        let (client, server) = state.connection()?;
        file::write(client as i32, b"something")?;
        with([server, state.at(OUTPUT), 100])
    }, nothing;
    Read "a socket without anything" waits: |state| with([state.connection()?.1, state.at(OUTPUT), 100]), nothing;
    Write "a file": |state| {
        let file = state.open(FILE, open::CREAT | open::TRUNC | open::RDWR)?;
        with([file, state.at(0), 20_000])
    }, nothing;
    Write "much to a file": |state| {
        let file = state.open(FILE, open::CREAT | open::TRUNC | open::RDWR)?;
        with([file, state.at(0), 200_000])
    }, nothing;
    Write "a little to a pipe": |state| with([state.pipe(0)?.1, state.at(0), 1]), nothing;
    Write "much to a pipe": |state| with([state.pipe(0)?.1, state.at(0), 65_536]), nothing;
    Write "more than a pipe holds" waits: |state| with([state.pipe(0)?.1, state.at(0), 100_000]), nothing;
    Write "to an event counter": |state| {
        let counter = system::readiness::event_counter(0, 0)?;
        with([state.keep(counter), state.put(0, &[1]), 8])
    }, nothing;
    Write "to a socket": |state| with([state.connection()?.0, state.at(0), 5000]), nothing;
    Write "more than a socket takes" waits: |state| with([state.connection()?.0, state.at(0), AREA]), nothing;
    ReadVector "": |state| {
        let (file, output) = (state.file()?, state.at(OUTPUT));
        let vector: Vec<usize> = (0..400).flat_map(|index| [output + index * 8, 8]).collect();
        with([file, state.put(0, &vector), 400])
    }, nothing;
    WriteVector "to a file": |state| {
        let (file, input) = (state.file()?, state.at(OUTPUT));
        let vector: Vec<usize> = (0..400).flat_map(|index| [input + index * 8, 8]).collect();
        with([file, state.put(0, &vector), 400])
    }, nothing;
    WriteVector "to a pipe": |state| {
        let ((_, writer), input) = (state.pipe(0)?, state.at(OUTPUT));
        with([writer, state.put(0, &[input, 10, input, 20, input, 30]), 3])
    }, nothing;
    ReadAt "": |state| with([state.file()?, state.at(OUTPUT), 5000, 100]), nothing;
    ReadVectorAt "": |state| {
        let (file, output) = (state.file()?, state.at(OUTPUT));
        with([file, state.put(0, &[output, 10, output + 10, 2000]), 2, 100])
    }, nothing;
    WriteVectorAt "": |state| {
        let (file, input) = (state.file()?, state.at(OUTPUT));
        with([file, state.put(0, &[input, 10, input, 5000]), 2, 100_000])
    }, nothing;
    SendFile "": |state| {
        let file = state.file()?;
        let (_, writer) = state.pipe(10)?;
        with([writer, file, state.put(0, &[0]), 5000])
    }, nothing;
    Splice "from a file": |state| {
        let file = state.file()?;
        let (_, writer) = state.pipe(10)?;
        with([file, state.put(0, &[0]), writer, 0, 5000, 0])
    }, nothing;
    Splice "to a file": |state| {
        let file = state.file()?;
        let (reader, _) = state.pipe(1000)?;
        with([reader, 0, file, state.put(0, &[100_000]), 5000, 0])
    }, nothing;
    Tee "": |state| {
        let (reader, _) = state.pipe(1000)?;
        let (_, writer) = state.pipe(0)?;
        with([reader, writer, 5000, 0])
    }, nothing;
    SpliceMemory "": |state| {
        let ((_, writer), input) = (state.pipe(0)?, state.at(OUTPUT));
        with([writer, state.put(0, &[input, 10, input, 20]), 2, 0])
    }, nothing;
    CopyFileRange "": |state| {
        let file = state.file()?;
        with([file, state.put(0, &[0]), file, state.put(8, &[100_000]), 5000, 0])
    }, nothing;
    WriteAt "": |state| with([state.file()?, state.at(0), 50_000, 100_000]), nothing;
    Poll "something is ready": |state| {
        let (reader, _) = state.pipe(1)?;
        let list = state.put(0, &[reader | 1 << 32]);
        with([list, 1, 0, 0, 8])
    }, nothing;
    Poll "until a time": |state| {
        let (reader, _) = state.pipe(0)?;
        let (list, time) = (state.put(0, &[reader | 1 << 32]), state.put_time(1_000_000));
        with([list, 1, time, 0, 8])
    }, nothing;
    Poll "a long list": |state| {
        let (reader, _) = state.pipe(0)?;
        let time = state.put_time(1_000_000);
        let list = state.put(128, &[reader | 1 << 32; 400]);
        with([list, 400, time, 0, 8])
    }, nothing;
    Poll "without end" waits: |state| {
        let (reader, _) = state.pipe(0)?;
        let list = state.put(0, &[reader | 1 << 32; 50]);
        with([list, 50, 0, 0, 8])
    }, nothing;
    Select "something is ready": |state| {
        let (reader, _) = state.pipe(1)?;
        let set = state.put(0, &[1 << reader, 0]);
        with([reader + 1, set, 0, 0, 0, 0])
    }, nothing;
    Select "until a time": |state| {
        let (reader, _) = state.pipe(0)?;
        let (set, time) = (state.put(0, &[1 << reader, 0]), state.put_time(1_000_000));
        with([reader + 1, set, 0, 0, time, 0])
    }, nothing;
    Select "a long set" waits: |state| {
        let (reader, _) = state.pipe(0)?;
        let mut words = [0; 16];
        words[0] = 1 << reader;
        with([1024, state.put(0, &words), 0, 0, 0, 0])
    }, nothing;
    ReadLink "": |state| {
        let made = call(SystemCall::SymbolicLink, [path(FILE), HERE, path(OTHER), 0, 0, 0]);
        made.or_else(|error| if error == Errno::EEXIST { Ok(0) } else { Err(error) })?;
        with([HERE, path(OTHER), state.at(OUTPUT), 100])
    }, remove;
    ExtendedStatus "": |state| with([HERE, path(OWN_PATH), 0, 0x7ff, state.at(OUTPUT)]), nothing;
    Mount "": |_| {
        file::make_directory(OTHER, 0o755).or(Ok::<(), Errno>(()))?;
        with([0, path(OTHER), path(c"tmpfs"), 0, path(c"size=1m")])
    }, |_, _| {
        file::unmount(OTHER, 0)?;
        file::unlink(OTHER, AT_REMOVEDIR)
    };
    Unmount "": |_| {
        // A call that failed has left it.
        let _ = file::unmount(OTHER, 0);
        file::make_directory(OTHER, 0o755).or(Ok::<(), Errno>(()))?;
        file::mount(OTHER, c"tmpfs", 0, c"")?;
        with([path(OTHER), 0])
    }, remove_directory;
    FileSystemAt "": |state| with([path(OWN_PATH), state.at(OUTPUT)]), nothing;
    StatusAt "": |state| with([HERE, path(OWN_PATH), state.at(OUTPUT), 0]), nothing;
    Status "": |state| with([state.file()?, state.at(OUTPUT)]), nothing;
    FileSystem "": |state| with([state.file()?, state.at(OUTPUT)]), nothing;
    GetCapabilities "": |state| {
        let header = state.put(0, &[0x2008_0522]);
        with([header, state.at(OUTPUT)])
    }, nothing;
    SetCapabilities "": |state| {
        let header = state.put(0, &[0x2008_0522]);
        call(SystemCall::GetCapabilities, [header, state.at(64), 0, 0, 0, 0])?;
        with([header, state.at(64)])
    }, nothing;
    SetThreadIdAddress "": |_| with([0]), nothing;
    Futex "wakes": |state| with([state.at(0), futex::WAKE as usize, 1]), nothing;
    Futex "until a time": |state| {
        let (word, time) = (state.put(0, &[5]), state.put_time(1_000_000));
        with([word, futex::WAIT as usize, 5, time])
    }, nothing;
    Futex "without end" waits: |state| with([state.put(0, &[5]), futex::WAIT as usize, 5, 0]), nothing;
    Futex "moves": |state| {
        let word = state.put(0, &[5]);
        with([word, futex::CMP_REQUEUE as usize, 1, 1, word + 8, 5])
    }, nothing;
    Futex "changes and wakes": |state| {
        let word = state.put(0, &[5]);
        with([word, futex::WAKE_OP as usize, 1, 1, word + 8, 0])
    }, nothing;
    Futex "locks": |state| with([state.put(0, &[0]), futex::LOCK as usize, 0, 0]), nothing;
    FutexWaits "until a time": |state| {
        let (words, time) = (waited_words(state), state.put_time(1_000_000));
        with([words, 2, 0, time, clock::MONOTONIC as usize])
    }, nothing;
    FutexWaits "without end" waits: |state| with([waited_words(state), 2, 0, 0, 0]), nothing;
    MemoryBarrier "": |_| with([1, 0, 0]), nothing;
    QueueOpen "": |_| with([path(QUEUE), (open::CREAT | open::RDWR) as usize, 0o600, 0]), |state, number| {
        close(state, number).and(remove_queue())
    };
    QueueUnlink "": |state| {
        let queue = queue(state)?;
        state.keep(Descriptor::from_result(call(SystemCall::QueueOpen, [path(QUEUE), 0o102, 0o600, 0, 0, 0])?));
        let _ = queue;
        with([path(QUEUE)])
    }, nothing;
    QueueSend "": |state| with([queue(state)?, state.at(0), 100, 0, 0]), nothing;
    QueueReceive "": |state| {
        let queue = queue(state)?;
        call(SystemCall::QueueSend, [queue, state.at(0), 100, 0, 0, 0])?;
        with([queue, state.at(OUTPUT), 128, 0, 0])
    }, nothing;
    QueueReceive "until a time": |state| {
        let (queue, time) = (queue(state)?, state.put_time(1));
        with([queue, state.at(OUTPUT), 128, 0, time])
    }, nothing;
    QueueReceive "without end" waits: |state| with([queue(state)?, state.at(OUTPUT), 128, 0, 0]), nothing;
    QueueNotify "": |state| with([queue(state)?, 0]), nothing;
    QueueAttributes "": |state| with([queue(state)?, 0, state.at(OUTPUT)]), nothing;
    SemaphoreGet "": |_| with([0, 100, 0o1600]), remove_semaphores;
    SemaphoreControl "": |state| with([semaphores(state)?, 0, 13, state.at(OUTPUT)]), nothing;
    SemaphoreOperate "undone": |state| {
        let semaphores = semaphores(state)?;
        with([semaphores, state.put(0, &[0x1000_0001_0000]), 1])
    }, nothing;
    SemaphoreOperate "without end" waits: |state| {
        let semaphores = semaphores(state)?;
        with([semaphores, state.put(0, &[0x0000_ffff_0001]), 1])
    }, nothing;
    SemaphoreOperateUntil "until a time": |state| {
        let (semaphores, time) = (semaphores(state)?, state.put_time(1_000_000));
        with([semaphores, state.put(0, &[0x0000_ffff_0001]), 1, time])
    }, nothing;
    SegmentGet "": |_| with([0, 8192, 0o1600]), remove_segment;
    SegmentControl "": |state| with([segment(state)?, 2, state.at(OUTPUT)]), nothing;
    SegmentAttach "": |state| with([segment(state)?, 0, 0]), detach;
    SegmentDetach "": |state| {
        let segment = segment(state)?;
        with([call(SystemCall::SegmentAttach, [segment, 0, 0, 0, 0, 0])?])
    }, nothing;
    ProcessFile "": |_| with([system::process::number() as usize, 0]), close;
    SignalProcessFile "": |state| with([process_file(state)?, 0, 0, 0]), nothing;
    TakeFile "": |state| with([process_file(state)?, 1, 0]), close;
    FileControl "makes a pipe larger": |state| {
        let (reader, _) = state.pipe(0)?;
        with([reader, control::SET_CAPACITY as usize, 1 << 20])
    }, nothing;
    SetRobustList "": |_| with([0, futex::ROBUST_HEAD]), nothing;
    GetRobustList "": |state| with([0, state.at(OUTPUT), state.at(OUTPUT + 8)]), nothing;
    Sleep "": |state| with([state.put_time(1_000_000), 0]), nothing;
    SleepOn "": |state| with([clock::MONOTONIC as usize, 0, state.put_time(1_000_000), 0]), nothing;
    GetTime "": |state| with([clock::MONOTONIC as usize, state.at(OUTPUT)]), nothing;
    GetResolution "": |state| with([clock::MONOTONIC as usize, state.at(OUTPUT)]), nothing;
    TimerFile "": |_| with([clock::MONOTONIC as usize, 0]), close;
    TimerFileSet "": |state| {
        let file = call(SystemCall::TimerFile, [clock::MONOTONIC as usize, 0, 0, 0, 0, 0])?;
        state.files.push(Descriptor::from_result(file));
        with([file, 0, state.put(0, &[0, 0, 1, 0]), state.at(OUTPUT)])
    }, nothing;
    TimerFileGet "": |state| {
        let file = call(SystemCall::TimerFile, [clock::MONOTONIC as usize, 0, 0, 0, 0, 0])?;
        state.files.push(Descriptor::from_result(file));
        with([file, state.at(OUTPUT)])
    }, nothing;
    GetIntervalTimer "": |state| with([0, state.at(OUTPUT)]), nothing;
    SetIntervalTimer "": |state| with([0, state.put(0, &[0, 0, 1000, 0]), state.at(OUTPUT)]), |_, _| {
        call(SystemCall::SetIntervalTimer, [0; 6]).map(drop)
    };
    TimerGet "": |state| with([state.timer()?, state.at(OUTPUT)]), delete_timer;
    TimerOverrun "": |state| with([state.timer()?]), delete_timer;
    TimerSet "": |state| with([state.timer()?, 0, state.put(0, &[0, 0, 1000, 0]), state.at(OUTPUT + 8)]), delete_timer;
    TimerDelete "": |state| with([state.timer()?]), nothing;
    ProcessControl "": |state| with([16, state.at(OUTPUT)]), nothing;
    GetHart "": |state| with([state.at(OUTPUT), state.at(OUTPUT + 8), 0]), nothing;
    Yield "": |_| with([]), nothing;
    Kill "one": |_| with([process::number() as usize, 0]), nothing;
    Kill "a group": |_| with([0, 0]), nothing;
    Kill "all": |_| with([usize::MAX, 0]), nothing;
    KillThread "": |_| with([process::number() as usize, 0]), nothing;
    KillThreadOf "": |_| with([process::number() as usize, process::number() as usize, 0]), nothing;
    SignalFile "": |state| with([usize::MAX, state.put(0, &[1 << 9]), 8, 0]), close;
    SignalStack "": |state| with([0, state.at(OUTPUT)]), nothing;
    SignalAction "": |state| with([10, state.put(0, &[1, 0, 0]), state.at(OUTPUT), 8]), nothing;
    SignalMask "": |state| with([2, state.put(0, &[1 << 9]), state.at(OUTPUT), 8]), nothing;
    SignalPending "": |state| with([state.at(OUTPUT), 8]), nothing;
    SignalWait "": |state| {
        // A signal that is blocked and pending.
        let set = state.put(0, &[1 << 9]);
        call(SystemCall::SignalMask, [2, set, 0, 8, 0, 0])?;
        call(SystemCall::Kill, [process::number() as usize, 10, 0, 0, 0, 0])?;
        with([set, state.at(OUTPUT), 0, 8])
    }, nothing;
    SignalQueue "": |_| with([process::number() as usize, 0, 0]), nothing;
    SignalQueueThread "": |_| with([process::number() as usize, process::number() as usize, 0, 0]), nothing;
    Times "": |state| with([state.at(OUTPUT)]), nothing;
    SetProcessGroup "": |_| with([0, 0]), nothing;
    GetProcessGroup "": |_| with([0]), nothing;
    GetSession "": |_| with([0]), nothing;
    SetSession "": |_| with([]), nothing;
    GetGroups "": |_| with([0, 0]), nothing;
    SetGroups "": |state| with([1, state.put(0, &[0])]), nothing;
    SetUser "": |_| with([0]), nothing;
    SetGroup "": |_| with([0]), nothing;
    SetUserPair "": |_| with([0, 0]), nothing;
    SetGroupPair "": |_| with([0, 0]), nothing;
    SetUserTriple "": |_| with([0, 0, 0]), nothing;
    SetGroupTriple "": |_| with([0, 0, 0]), nothing;
    GetUserTriple "": |state| with([state.at(OUTPUT), state.at(OUTPUT), state.at(OUTPUT)]), nothing;
    GetGroupTriple "": |state| with([state.at(OUTPUT), state.at(OUTPUT), state.at(OUTPUT)]), nothing;
    SetFileUser "": |_| with([0]), nothing;
    SetFileGroup "": |_| with([0]), nothing;
    GetAffinity "": |state| with([0, 8, state.at(OUTPUT)]), nothing;
    SetAffinity "": |state| with([0, 8, state.put(0, &[usize::MAX])]), nothing;
    SystemInformation "": |state| with([state.at(OUTPUT)]), nothing;
    SystemName "": |state| with([state.at(OUTPUT)]), nothing;
    GetUsage "": |state| with([0, state.at(OUTPUT)]), nothing;
    GetProcess "": |_| with([]), nothing;
    GetParent "": |_| with([]), nothing;
    GetUser "": |_| with([]), nothing;
    GetEffectiveUser "": |_| with([]), nothing;
    GetGroup "": |_| with([]), nothing;
    GetEffectiveGroup "": |_| with([]), nothing;
    GetThread "": |_| with([]), nothing;
    Socket "for a stream": |_| with([2, SOCK_STREAM as usize, 0]), close;
    Socket "for datagrams": |_| with([2, SOCK_DGRAM as usize, 0]), close;
    Bind "a stream": |state| with([state.socket(SOCK_STREAM)?, state.put_address(0, ANY.into()), 16]), nothing;
    Bind "datagrams": |state| with([state.socket(SOCK_DGRAM)?, state.put_address(0, ANY.into()), 16]), nothing;
    Socket "a local one": |_| with([1, SOCK_STREAM as usize, 0]), close;
    Bind "a local name": |state| {
        let (socket, address, size) = state.local_name(SOCK_STREAM, NAME)?;
        with([socket, address, size])
    }, nothing;
    Bind "any local name": |state| {
        let (socket, address, _) = state.local_name(SOCK_DGRAM, NAME)?;
        with([socket, address, 2])
    }, nothing;
    Bind "a path": |state| {
        let (socket, address, size) = state.local_name(SOCK_DGRAM, OTHER.to_bytes())?;
        with([socket, address, size])
    }, remove;
    Listen "a local socket": |state| {
        let (socket, _, _) = state.local_name(SOCK_STREAM, NAME)?;
        network::bind_local(socket as i32, &network::LocalAddress::new(NAME)?)?;
        with([socket, 8])
    }, nothing;
    Accept "a local connection": |state| {
        let listener = state.named(SOCK_STREAM)?;
        let (client, _, _) = state.local_name(SOCK_STREAM, NAME)?;
        network::connect_local(client as i32, &network::LocalAddress::new(NAME)?)?;
        with([listener, 0, 0])
    }, close;
    Connect "to a local name": |state| {
        state.named(SOCK_STREAM)?;
        let (client, address, size) = state.local_name(SOCK_STREAM, NAME)?;
        with([client, address, size])
    }, nothing;
    Connect "local datagrams": |state| {
        state.named(SOCK_DGRAM)?;
        let (client, address, size) = state.local_name(SOCK_DGRAM, NAME)?;
        with([client, address, size])
    }, nothing;
    SendTo "to a local name": |state| {
        state.named(SOCK_DGRAM)?;
        let (client, address, size) = state.local_name(SOCK_DGRAM, NAME)?;
        with([client, state.at(OUTPUT), 5000, 0, address, size])
    }, nothing;
    Listen "": |state| {
        let socket = state.socket(SOCK_STREAM)?;
        network::bind(socket as i32, ANY)?;
        with([socket, 8])
    }, nothing;
    Listen "without an address": |state| with([state.socket(SOCK_STREAM)?, 8]), nothing;
    Accept "": |state| {
        let (listener, address) = state.listener()?;
        let client = state.socket(SOCK_STREAM)?;
        network::connect(client as i32, address)?;
        with([listener, 0, 0])
    }, close;
    Accept "nobody" waits: |state| with([state.listener()?.0, 0, 0]), nothing;
    AcceptWith "": |state| {
        let (listener, address) = state.listener()?;
        let client = state.socket(SOCK_STREAM)?;
        network::connect(client as i32, address)?;
        let size = state.put(64, &[16]);
        with([listener, state.at(OUTPUT), size, SOCK_NONBLOCK as usize])
    }, close;
    Connect "a stream": |state| {
        let (_, address) = state.listener()?;
        with([state.socket(SOCK_STREAM)?, state.put_address(0, address), 16])
    }, nothing;
    Connect "datagrams": |state| {
        let (_, address) = state.datagrams()?;
        with([state.socket(SOCK_DGRAM)?, state.put_address(0, address), 16])
    }, nothing;
    GetSocketName "": |state| {
        let (listener, size) = (state.listener()?.0, state.put(64, &[16]));
        with([listener, state.at(OUTPUT), size])
    }, nothing;
    GetPeerName "": |state| {
        let (client, size) = (state.connection()?.0, state.put(64, &[16]));
        with([client, state.at(OUTPUT), size])
    }, nothing;
    SendTo "a datagram": |state| {
        let (socket, address) = state.datagrams()?;
        let address = state.put_address(0, address);
        with([socket, state.at(64), 1000, 0, address, 16])
    }, nothing;
    SendTo "through a connection": |state| with([state.connection()?.0, state.at(0), 3000, 0, 0, 0]), nothing;
    ReceiveFrom "a datagram": |state| {
        let (socket, address) = state.datagrams()?;
        network::send_to(socket as i32, &[1; 1000], 0, Some(address))?;
        let size = state.put(0, &[16]);
        with([socket, state.at(OUTPUT), 1000, 0, state.at(64), size])
    }, nothing;
    ReceiveFrom "no datagram" waits: |state| with([state.datagrams()?.0, state.at(OUTPUT), 1000, 0, 0, 0]), nothing;
    ReceiveFrom "nothing at once": |state| {
        with([state.datagrams()?.0, state.at(OUTPUT), 1000, message::DONTWAIT as usize, 0, 0])
    }, nothing;
    SocketPair "": |state| with([1, SOCK_STREAM as usize, 0, state.at(OUTPUT)]), close_both;
    Write "to a local socket": |state| with([state.local(SOCK_STREAM)?.0, state.at(0), 5000]), nothing;
    Write "more than a local socket takes" waits: |state| {
        with([state.local(SOCK_STREAM)?.0, state.at(0), 100_000])
    }, nothing;
    Read "a local socket" waits: |state| with([state.local(SOCK_DGRAM)?.0, state.at(OUTPUT), 100]), nothing;
    SendMessage "with files": |state| {
        let (socket, file) = (state.local(SOCK_DGRAM)?.0, state.pipe(0)?.0);
        let control = state.put(256, &[16 + 12, 1 | 1 << 32, file | file << 32, file]);
        with([socket, state.message(4000, (control, 28)), 0])
    }, nothing;
    SendMessage "through a connection": |state| {
        let socket = state.connection()?.0;
        with([socket, state.message(4000, (0, 0)), 0])
    }, nothing;
    SendMessage "a datagram": |state| {
        let (_, address) = state.datagrams()?;
        let client = state.socket(SOCK_DGRAM)?;
        network::connect(client as i32, address)?;
        with([client, state.message(1000, (0, 0)), 0])
    }, nothing;
    ReceiveMessage "with files": |state| {
        let ((sender, receiver), file) = (state.local(SOCK_STREAM)?, state.pipe(0)?.0);
        network::send_files(sender as i32, &[1; 100], &[file as i32], 0)?;
        let control = state.at(OUTPUT);
        with([receiver, state.message(100, (control, 64)), 0])
    }, close_received;
    ReceiveMessage "nothing" waits: |state| {
        let receiver = state.local(SOCK_SEQPACKET)?.1;
        with([receiver, state.message(100, (0, 0)), 0])
    }, nothing;
    SendMessages "with files": |state| {
        let (socket, file) = (state.local(SOCK_DGRAM)?.0, state.pipe(0)?.0);
        let control = state.put(256, &[16 + 12, 1 | 1 << 32, file | file << 32, file]);
        with([socket, state.message(4000, (control, 28)), 1, 0])
    }, nothing;
    ReceiveMessages "with files": |state| {
        let ((sender, receiver), file) = (state.local(SOCK_STREAM)?, state.pipe(0)?.0);
        network::send_files(sender as i32, &[1; 100], &[file as i32], 0)?;
        let control = state.at(OUTPUT);
        with([receiver, state.message(100, (control, 64)), 1, 0, 0])
    }, close_received;
    ReceiveMessages "nothing" waits: |state| {
        let receiver = state.local(SOCK_SEQPACKET)?.1;
        with([receiver, state.message(100, (0, 0)), 1, 0, 0])
    }, nothing;
    SetSocketOption "": |state| {
        let (socket, value) = (state.socket(SOCK_STREAM)?, state.put(0, &[1]));
        with([socket, socket_option::SOL_SOCKET as usize, socket_option::SO_REUSEADDR as usize, value, 4])
    }, nothing;
    SetSocketOption "of buffers": |state| {
        let (socket, value) = (state.connection()?.0, state.put(0, &[200_000]));
        with([socket, socket_option::SOL_SOCKET as usize, socket_option::SO_RCVBUF as usize, value, 4])
    }, nothing;
    GetSocketOption "": |state| {
        let (socket, size) = (state.socket(SOCK_STREAM)?, state.put(0, &[4]));
        let option = socket_option::SO_TYPE as usize;
        with([socket, socket_option::SOL_SOCKET as usize, option, state.at(OUTPUT), size])
    }, nothing;
    Shutdown "": |state| with([state.connection()?.0, SHUT_RDWR as usize]), nothing;
    Break "": |_| with([0]), nothing;
    Map "": |_| {
        with([0, 1 << 20, (protection::READ | protection::WRITE) as usize, ANONYMOUS, usize::MAX, 0])
    }, unmap_result;
    Map "with pages": |_| {
        let flags = ANONYMOUS | mapping::POPULATE as usize;
        with([0, 1 << 20, (protection::READ | protection::WRITE) as usize, flags, usize::MAX, 0])
    }, unmap_result;
    Map "a file": |state| {
        let file = state.open(OWN_PATH, open::RDONLY)?;
        with([0, 1 << 20, protection::READ as usize, mapping::PRIVATE as usize, file, 0])
    }, unmap_result;
    Map "shared": |_| {
        let flags = (mapping::SHARED | mapping::ANONYMOUS) as usize;
        with([0, 1 << 20, (protection::READ | protection::WRITE) as usize, flags, usize::MAX, 0])
    }, unmap_result;
    Map "a file in common": |state| {
        state.file()?;
        let file = state.open(FILE, open::RDWR)?;
        with([0, 1 << 20, (protection::READ | protection::WRITE) as usize, mapping::SHARED as usize, file, 0])
    }, unmap_result;
    Unmap "all": |state| with([state.fresh(1 << 20)?, 1 << 20]), nothing;
    Unmap "the middle": |state| with([state.fresh(1 << 20)? + 4096, 4096]), nothing;
    Remap "in place": |state| with([state.fresh(1 << 20)?, 1 << 20, 1 << 19, 0, 0]), nothing;
    Remap "elsewhere": |state| with([state.fresh(1 << 20)?, 1 << 20, 1 << 21, 1, 0]), |_, address| {
        // SAFETY: no other code uses the mapping.
        unsafe { system::memory::unmap(address as *mut u8, 1 << 21) }
    };
    Protect "the middle": |state| {
        with([state.fresh(1 << 20)? + 4096, 4096, protection::READ as usize])
    }, nothing;
    Wait "": |state| {
        let child = state.start()?;
        with([child as usize, state.at(OUTPUT), 0, 0])
    }, nothing;
    WaitIdentified "": |state| {
        let child = state.start()?;
        with([wait_kind::PROCESS as usize, child as usize, state.at(OUTPUT), types::WEXITED as usize, 0])
    }, nothing;
    ProcessLimit "": |state| {
        let infinity = limit::INFINITY as usize;
        let new = state.put(0, &[infinity, infinity]);
        with([0, limit::CALLS_IN_FLIGHT as usize, new, state.at(OUTPUT)])
    }, nothing;
    Rename "": |state| {
        state.file()?;
        with([HERE, path(FILE), HERE, path(OTHER), 0])
    }, remove;
    GetRandom "": |state| with([state.at(OUTPUT), 10_000, 0]), nothing;
    Spawn "": |state| {
        let [path, arguments, environment, descriptors] = state.program();
        with([path, arguments, environment, descriptors, 5])
    }, wait_for;
    WorkerWait "": |_| with([0, 1_000_000]), nothing;
    WorkerWake "": |_| with([0]), nothing;
    Cancel "": |_| with([12_345]), nothing;
    Counters "": |state| with([state.at(OUTPUT), 8 * Counter::ALL.len()]), nothing;
    InterruptReturn "": |_| with([]), nothing;
    InterruptLeave "": |_| with([]), nothing;
    Log "": |state| with([state.put_bytes(0, b"a line"), 6]), nothing;
    RingEnter "": |_| with([0, 0]), nothing;
    InterruptReceiver "": |_| with([40]), close;
    InterruptGrant "for itself": |state| with([state.receiver()?, 0]), close;
    InterruptGrant "for another": |state| {
        let (receiver, child) = (state.receiver()?, state.start_sleeper()?);
        with([receiver, child as usize])
    }, nothing;
    InterruptOpen "": |state| {
        state.right()?;
        with([process::number() as usize, 40])
    }, close;
    InterruptSend "": |state| with([state.right()?]), nothing;
    InterruptRevoke "a right": |state| with([state.right()?]), nothing;
    InterruptRevoke "a receiver": |state| with([state.receiver()?]), nothing;
    GetScheduling "": |state| with([0, state.at(OUTPUT), 80]), nothing;
    SetScheduling "a budget": |state| {
        let child = state.start_sleeper()?;
        with([child as usize, scheduling::BUDGET as usize, 10_000_000, 100_000_000])
    }, nothing;
    SetScheduling "a mode": |_| with([0, scheduling::MODE as usize, 0, 0]), nothing;
    SetSystemScheduling "": |_| with([1, 0]), nothing;
    TraceRead "": |state| with([state.at(OUTPUT), 4096]), nothing;
    TraceWrite "": |state| with([state.at(0), 64]), nothing;
    Snapshot "": |state| {
        with([trace::subject::PROCESSES as usize, 0, state.at(OUTPUT), 4096])
    }, nothing;
    KernelSide "": |_| with([0]), nothing;
];

/// Stores two words for `futex_waitv`, and returns the address of their list.
fn waited_words(state: &mut State) -> usize {
    let word = state.put(OUTPUT, &[5, 5]);
    let flags = (futex::SIZE_U32 | futex::PRIVATE) as usize;
    state.put(0, &[5, word, flags, 5, word + 8, flags])
}

/// The name of the one queue of messages.
const QUEUE: &CStr = c"allocation";

/// Makes a queue without a name.
fn queue(state: &mut State) -> Result<usize> {
    let attributes = state.put(0, &[0, 4, 128, 0]);
    let made = call(SystemCall::QueueOpen, [path(QUEUE), 0o102, 0o600, attributes, 0, 0])?;
    let queue = state.keep(Descriptor::from_result(made));
    remove_queue()?;
    Ok(queue)
}

fn remove_queue() -> Result<()> {
    call(SystemCall::QueueUnlink, [path(QUEUE), 0, 0, 0, 0, 0]).map(|_| ())
}

/// Returns the number of the one set of semaphores, which is made if there is none.
fn semaphores(_: &mut State) -> Result<usize> {
    call(SystemCall::SemaphoreGet, [SEGMENT, 2, 0o1666, 0, 0, 0])
}

/// The key of the one segment of these scripts.
const SEGMENT: usize = 0x5e97;

/// Returns the number of the one segment, which is made if there is none.
fn segment(_: &mut State) -> Result<usize> {
    call(SystemCall::SegmentGet, [SEGMENT, 8192, 0o1666, 0, 0, 0])
}

/// Opens this process.
fn process_file(state: &mut State) -> Result<usize> {
    let file = call(SystemCall::ProcessFile, [system::process::number() as usize, 0, 0, 0, 0, 0])?;
    Ok(state.keep(Descriptor::from_result(file)))
}

/// Calls that change the process: each is made in a process of its own.
const CHANGES: &[Script] = scripts![
    Break "grows": |_| with([call(SystemCall::Break, [0; 6])? + (1 << 20)]), nothing;
    WorkerCreate "": |state| {
        let stack = state.stack()?;
        with([leave as *const () as usize, stack, 0, 0])
    }, nothing;
    Clone "": |state| {
        let stack = state.stack()?;
        with([0, stack])
    }, nothing;
    TimerCreate "": |state| with([clock::MONOTONIC as usize, 0, state.at(OUTPUT)]), nothing;
    CloneWith "": |state| {
        let stack = state.stack()?;
        with([0, stack])
    }, nothing;
    Execute "": |state| {
        let [path, arguments, environment, _] = state.program();
        with([path, arguments, environment])
    }, nothing;
    ExecuteAt "": |state| {
        let [path, arguments, environment, _] = state.program();
        with([HERE, path, arguments, environment, 0])
    }, nothing;
    InterruptHandler "": |_| with([0]), nothing;
    RingSetup "": |_| with([64, 0]), nothing;
    RingSetup "with completions": |_| with([4096, 4096]), nothing;
    InterruptPage "": |state| with([state.right()?]), nothing;
    KernelSide "threads": |_| with([1]), nothing;
    KernelSide "a thread that polls": |_| with([3]), nothing;
];

/// Calls that end their caller, or the machine.
const NEVER: [SystemCall; 6] = [
    SystemCall::Exit,
    SystemCall::ExitGroup,
    SystemCall::Reboot,
    // It is refused in any case.
    SystemCall::Trace,
    // They wait for a signal, or return from one.
    SystemCall::SignalSuspend,
    SystemCall::SignalReturn,
];

const ANONYMOUS: usize = (mapping::PRIVATE | mapping::ANONYMOUS) as usize;

fn unmap_result(_: &mut State, address: usize) -> Result<()> {
    // SAFETY: no other code uses the mapping.
    unsafe { system::memory::unmap(address as *mut u8, 1 << 20) }
}

/// Makes the `nth` allocation from now on fail (0: none); returns the number of allocations since the last time.
fn arm(nth: usize) -> Result<usize> {
    call(SystemCall::SetSystemScheduling, [FAIL_ALLOCATION as usize, nth, 0, 0, 0, 0])
}

/// Errors that a call may return for lack of memory.
const SHORTAGES: [Errno; 5] = [Errno::ENOMEM, Errno::EAGAIN, Errno::ENOBUFS, Errno::ENOSPC, Errno::EBUSY];

/// Token of asynchronous calls.
const TOKEN: u64 = 4711;
/// Time in which a waiting call is registered.
const BEFORE_CANCELLING_NS: u64 = 200_000;

/// A maker of calls.
struct Caller {
    state: State,
    way: Way,
    /// Ring in which asynchronous calls complete.
    ring: Option<Raw>,
}

impl Caller {
    fn new(way: Way) -> Result<Caller> {
        let ring = if way == Way::Synchronously { None } else { Some(Raw::new()?) };
        Ok(Caller { state: State::new(), way, ring })
    }

    fn makes(&self, script: &Script) -> bool {
        match self.way {
            Way::Synchronously => !script.waits,
            _ => script.call.origin() == abi_unix::call::Origin::Anyone,
        }
    }

    fn make(&mut self, script: &Script, arguments: [usize; 6]) -> Result<usize> {
        let Some(ring) = &mut self.ring else {
            // Its stack is the new thread's: not one of this program's functions.
            let number = self.state.at(OUTPUT) as *const AtomicU32;
            let (end, whole) = (arguments[1] as *mut u8, (arguments[1].wrapping_sub(8192) as *mut u8, 8192));
            // SAFETY: stack and number stay valid until this process ends.
            let started = unsafe {
                match script.call {
                    SystemCall::Clone => system::thread::start(leave_thread, 0, end, 0, number),
                    SystemCall::CloneWith => system::thread::start_on(leave_thread, 0, whole, 0, number),
                    call => return crate::harness::call(call, arguments),
                }
            };
            return started.map(|number| number as usize);
        };
        if self.way == Way::Asynchronously {
            // SAFETY: the call reaches the area and the prepared objects, which stay until it is complete.
            let word = unsafe { system::syscall_asynchronous(script.call as usize, arguments, 0, 4, TOKEN) };
            if word != WILL_BE_POSTED {
                return decode(word);
            }
        } else {
            ring.submit(script.call, TOKEN, &arguments).map_err(|_| Errno::EIO)?;
            system::worker::ring_enter(0, 0)?;
        }
        if script.waits {
            system::system::sleep(TimeSpec::from_ns(BEFORE_CANCELLING_NS))?;
            let _ = system::worker::cancel(TOKEN);
        }
        loop {
            if let Some(completion) = ring.take() {
                break if completion.token == TOKEN { decode(completion.result as usize) } else { Err(Errno::EIO) };
            }
            system::worker::yield_now();
        }
    }

    /// Makes a call whose `nth` allocation fails, and undoes its effect: returns its result, and the number of its
    /// allocations.
    fn attempt(&mut self, script: &Script, nth: usize) -> core::result::Result<(Result<usize>, usize), String> {
        let arguments = must!((script.prepare)(&mut self.state));
        must!(arm(nth));
        let result = self.make(script, arguments);
        let made = must!(arm(0));
        if let Ok(value) = result {
            must!((script.undo)(&mut self.state, value));
        }
        self.state.clear();
        Ok((result, made))
    }
}

extern "C" fn leave_thread(_: usize) -> ! {
    system::worker::exit()
}

/// Returns whether a call may return this after a failed allocation, if it returns `usually` otherwise.
fn is_fitting(result: Result<usize>, usually: Result<usize>) -> bool {
    match result {
        Ok(_) => usually.is_ok(),
        Err(error) => SHORTAGES.contains(&error) || usually == Err(error),
    }
}

/// Returns the resources of the machine and of this process that a call might have kept.
fn belongings() -> Result<[u64; 8]> {
    let lowest = Descriptor::from_result(call(SystemCall::Duplicate, [1, 0, 0, 0, 0, 0])?);
    let all = system::system::counters()?;
    let of = |counter: Counter| all[counter as usize];
    Ok([
        of(Counter::HeapBytes),
        of(Counter::FramesTotal) - of(Counter::FramesFree) - of(Counter::HeapFootprint) / 4096,
        of(Counter::KernelCoroutines),
        of(Counter::Processes),
        of(Counter::CallsInFlight),
        of(Counter::Connections),
        of(Counter::InterruptReceivers),
        lowest.raw() as u64,
    ])
}

/// Waits until the resources are no more than before, for a while: some are freed a little later.
fn settled(before: &[u64; 8]) -> Result<[u64; 8]> {
    for _ in 0..20 {
        let now = belongings()?;
        if now.iter().zip(before).all(|(now, before)| now <= before) {
            return Ok(now);
        }
        system::system::sleep(TimeSpec::from_ns(1_000_000))?;
    }
    belongings()
}

/// Number of times that a resource may grow before it counts as a leak: tables grow.
const GROWTHS: usize = 4;

fn still_works() -> Outcome {
    let file = must!(file::open(FILE, open::CREAT | open::RDWR, 0o644));
    must!(file::write_all(file.raw(), b"still here"));
    let mut bytes = [0; 10];
    check!(file::read_at(file.raw(), &mut bytes, 0) == Ok(10) && &bytes == b"still here", "a file is not read");
    drop(file);
    must!(file::unlink(FILE, 0));
    Ok(())
}

fn name(script: &Script) -> String {
    alloc::format!("{} {}", script.call.name(), script.what)
}

/// Makes every call in one way, each of its allocations failing in turn.
fn every_allocation_fails(way: Way) -> Outcome {
    let mut caller = must!(Caller::new(way));
    must!(arm(0));
    let (mut calls, mut allocations) = (0, 0);
    for script in SCRIPTS {
        if caller.makes(script) {
            let found = all_of(&mut caller, script).map_err(|reason| alloc::format!("{}: {reason}", name(script)))?;
            (calls, allocations) = (calls + 1, allocations + found);
        }
    }
    println!("note: {allocations} allocations failed in {calls} calls");
    Ok(())
}

fn all_of(caller: &mut Caller, script: &Script) -> core::result::Result<usize, String> {
    let _ = caller.attempt(script, 0)?;
    let (usually, _) = caller.attempt(script, 0)?;
    for nth in 1.. {
        let mut before = must!(belongings());
        let mut made = 0;
        for round in 0.. {
            let result;
            (result, made) = caller.attempt(script, nth)?;
            let is_right = if made < nth { result.is_ok() == usually.is_ok() } else { is_fitting(result, usually) };
            check!(is_right, "{result:?} with allocation {nth} of {made}, and else {usually:?}");
            let after = must!(settled(&before));
            if after.iter().zip(&before).all(|(after, before)| after <= before) {
                break;
            }
            check!(round < GROWTHS, "{after:?} after {before:?} with allocation {nth} of {made}: {result:?}");
            before = after;
        }
        still_works()?;
        if made < nth {
            return Ok(nth - 1);
        }
    }
    Ok(0)
}

pub async fn every_call_is_tried() -> Outcome {
    let is_there = |call: &SystemCall| SCRIPTS.iter().chain(CHANGES).any(|script| script.call == *call);
    for call in SystemCall::ALL {
        check!(is_there(call) != NEVER.contains(call), "{}", call.name());
    }
    Ok(())
}

pub async fn of_synchronous_calls() -> Outcome {
    every_allocation_fails(Way::Synchronously)
}

pub async fn of_asynchronous_calls() -> Outcome {
    every_allocation_fails(Way::Asynchronously)
}

pub async fn of_calls_through_the_ring() -> Outcome {
    every_allocation_fails(Way::ThroughTheRing)
}

/// Exit status of a separate process whose allocation was made and has failed.
const HAS_FAILED: u8 = 1;

/// Makes one call, in a separate process: `SCRIPT:NTH`.
pub fn act(argument: &str) -> i32 {
    let mut numbers = argument.split(':').map(|number| number.parse::<usize>().unwrap_or(0));
    let (index, nth) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let Some(script) = SCRIPTS.iter().chain(CHANGES).nth(index) else { return 2 };
    let way = if script.waits { Way::Asynchronously } else { Way::Synchronously };
    let made = Caller::new(way).map_err(|error| alloc::format!("{error:?}")).and_then(|mut caller| {
        let (result, made) = caller.attempt(script, nth)?;
        let is_right = match result {
            // A wait that lacks memory looks again until its time has come.
            Err(error) if made >= nth => {
                SHORTAGES.contains(&error) || matches!(error, Errno::EINVAL | Errno::ECANCELED | Errno::ETIMEDOUT)
            }
            _ => true,
        };
        check!(is_right, "{result:?} with allocation {nth} of {made}");
        Ok(made)
    });
    match made {
        Ok(made) => i32::from(made >= nth),
        Err(reason) => {
            eprintln!("{}: {reason}", name(script));
            3
        }
    }
}

/// Allocations of a first call that fail. Later ones are those of any other call: pages, one after the other.
const MOST_OF_FIRST: usize = 12;

/// Makes every call as the first of a process.
pub async fn of_first_calls() -> Outcome {
    // Only a process that may change the system's scheduling may request failing allocations.
    let held = must!(system::authority::held(0));
    must!(system::authority::set(0, Held { inheritable: held.permitted, ..held }));
    let (mut calls, mut allocations) = (0, 0);
    for (index, script) in SCRIPTS.iter().chain(CHANGES).enumerate() {
        for nth in 1.. {
            let mut before = must!(belongings());
            let mut is_over = false;
            for round in 0.. {
                let argument = alloc::format!("{index}:{nth}");
                let child =
                    Command::new(harness::OWN_PATH).argument("--act").argument("allocation").argument(&argument);
                let ending = must!(must!(child.spawn()).wait().await);
                // Another program does not read the number of allocations.
                let made = must!(arm(0));
                is_over = match ending {
                    Ending::Exited(HAS_FAILED) => false,
                    Ending::Exited(0) => made < nth,
                    // Not before the old program was gone, or in a call of the new one.
                    Ending::Killed(9) | Ending::Exited(_) if script.executes() && made >= nth => false,
                    ending => return Err(alloc::format!("{} {nth}: {ending:?}", name(script))),
                };
                let after = must!(settled(&before));
                if after.iter().zip(&before).all(|(after, before)| after <= before) {
                    break;
                }
                check!(round < GROWTHS, "{} {nth}: {after:?} after {before:?}", name(script));
                before = after;
            }
            if is_over {
                break;
            }
            allocations += 1;
            if nth == MOST_OF_FIRST && !script.executes() {
                break;
            }
        }
        calls += 1;
    }
    println!("note: {allocations} allocations failed in {calls} calls");
    Ok(())
}
