//! A process that makes one call for ever, in one way: `bench fairness budget_worst act WAY CALL`.
//!
//! Each call has its objects and its arguments, so that it does its work ([`Attack::prepare`]), and objects that it
//! leaves are removed ([`Attack::undo`]). All of that is charged to the same process. An attack whose first call fails
//! would measure the way to an error: it ends with that error, unless the call is one of [`REFUSED`].

use alloc::boxed::Box;
use alloc::ffi::CString;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use abi_queue::{CompletionHeader, Request, RequestHeader, completion, request};
use abi_unix::authority::{Capability, CapabilitySet, version};
use abi_unix::call::{Argument, Origin, Waiting};
use abi_unix::types::{
    self, AT_FDCWD, AT_REMOVEDIR, LONGEST_ADDRESS, MessageHeader, SHUT_RDWR, SOCK_DGRAM, SOCK_STREAM, SocketAddress,
    TimeSpec, advice, control, epoll, file_event, futex, limit, mapping, message, open, protection, scheduling,
    socket_option, terminal, wait_kind,
};
use abi_unix::{Errno, WILL_BE_POSTED, errno, trace};
use cops::Priority;
use cops::system::kernel_side::{KernelSide, choose};
use cops::system::{self, Descriptor, Result, SystemCall, file, network};
use ring::{Completions, Producer, Requests};

use crate::{Outcome, attempt};

/// Capabilities of an attacker: all but those with which it could free itself from its budget, or end the machine.
pub const CAPABILITIES: CapabilitySet = CapabilitySet::only(Capability::Kill)
    .or(CapabilitySet::only(Capability::Administration))
    .or(CapabilitySet::only(Capability::Resource))
    .or(CapabilitySet::only(Capability::Log))
    .or(CapabilitySet::only(Capability::Observe));

/// The reason why calls on extended attributes fail: the machine of the scenario has no volume.
const NO_ATTRIBUTES: &str = "files in memory have no attributes";

/// Calls that fail each time, with the reason.
const REFUSED: &[(SystemCall, &str)] = &[
    (SystemCall::Reboot, "ends the machine"),
    (SystemCall::Trace, "there is no debugging"),
    (SystemCall::SetSystemScheduling, "needs a capability that frees from budgets, too"),
    (SystemCall::InterruptReturn, "no handler runs"),
    (SystemCall::InterruptLeave, "no handler runs"),
    (SystemCall::InterruptOpen, "no other process grants it a right"),
    (SystemCall::TraceRead, "the kernel was started without a trace"),
    (SystemCall::TraceWrite, "the kernel was started without a trace"),
    (SystemCall::SignalWait, "ends at its time limit: the signal that it waits for does not come"),
    (SystemCall::FutexWaits, "ends at its time limit: no word is woken"),
    (SystemCall::WorkerWait, "ends at its time limit: the completions that it waits for do not come"),
    (SystemCall::SetSession, "leads a session after the first call"),
    (SystemCall::SetAttribute, NO_ATTRIBUTES),
    (SystemCall::SetAttributeOfLink, NO_ATTRIBUTES),
    (SystemCall::SetAttributeOfFile, NO_ATTRIBUTES),
    (SystemCall::GetAttribute, NO_ATTRIBUTES),
    (SystemCall::GetAttributeOfLink, NO_ATTRIBUTES),
    (SystemCall::GetAttributeOfFile, NO_ATTRIBUTES),
    (SystemCall::RemoveAttribute, NO_ATTRIBUTES),
    (SystemCall::RemoveAttributeOfLink, NO_ATTRIBUTES),
    (SystemCall::RemoveAttributeOfFile, NO_ATTRIBUTES),
];

/// The way in which a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Direct,
    Asynchronous,
    Ring,
    WaitingThreads,
    RetryingThreads,
    PollingThread,
}

pub const WAYS: [(&str, Way); 6] = [
    ("direct", Way::Direct),
    ("asynchronous", Way::Asynchronous),
    ("ring", Way::Ring),
    ("waiting", Way::WaitingThreads),
    ("retrying", Way::RetryingThreads),
    ("polling", Way::PollingThread),
];

impl Way {
    /// Returns whether this way differs from [`Way::Direct`] for a call.
    pub fn is_for(self, call: SystemCall) -> bool {
        match self {
            Way::Direct => true,
            Way::Ring => call.origin() == Origin::Anyone,
            _ => call.waiting() == Waiting::Possible && call != SystemCall::WorkerWait,
        }
    }

    /// Returns whether calls of this way wait beside their caller.
    fn is_asynchronous(self) -> bool {
        matches!(self, Way::Asynchronous | Way::PollingThread | Way::Ring)
    }
}

/// Entries of a request ring.
const ENTRIES: usize = 256;
/// Most calls in flight.
const MOST: usize = 512;
/// Bytes of a buffer, of a mapping, and of a pipe.
const BUFFER: usize = 4096;
const MAPPING: usize = 64 << 10;
/// The name of a queue of messages, the flags that make it, and its attributes.
const QUEUE: &CStr = c"attack";
const NEW_QUEUE: usize = (open::CREAT | open::RDWR | open::NONBLOCK) as usize;
static QUEUE_ATTRIBUTES: [i64; 8] = [0, 4, BUFFER as i64, 0, 0, 0, 0, 0];
const PIPE: usize = 64 << 10;
/// Stacks of threads and workers that leave at once.
const STACKS: usize = 64;
const STACK: usize = 4096;

const HERE: usize = AT_FDCWD as usize;
const ANY: SocketAddress = SocketAddress { address: [127, 0, 0, 1], port: 0 };
const OWN_PATH: &CStr = c"/bin/bench";
/// A program that ends at once.
const PROGRAM: &CStr = c"/bin/hello";
/// Files in a message, and those of them that a receiver takes.
const SENT: usize = message::MOST_FILES;
const RECEIVED: usize = 8;
/// Messages of a call that moves several: a socket takes no more with so many files.
const BATCH: usize = 2;
/// Bytes of control messages before their data.
const CONTROL: usize = 16;
/// Directory of mounts.
const MOUNT: &CStr = c"/tmp/mounted";
/// Token of a call that is made to be cancelled.
const CANCELLED: u64 = 1 << 40;

static NUMBER: AtomicU32 = AtomicU32::new(0);
static WORD: AtomicU32 = AtomicU32::new(0);

fn raw(call: SystemCall, arguments: [usize; 6]) -> Result<usize> {
    // SAFETY: the arguments name memory of the attack, which lives for ever, and on which no code relies.
    errno::decode(unsafe { system::raw::syscall(call as usize, arguments) })
}

fn at<T: ?Sized>(thing: &T) -> usize {
    core::ptr::from_ref(thing).cast::<u8>() as usize
}

extern "C" fn leave(_: usize, _: usize) -> ! {
    system::worker::exit()
}

extern "C" fn leave_thread(_: usize) -> ! {
    system::worker::exit()
}

/// A call that is ready to be made: its arguments, and the objects that are closed afterwards.
#[derive(Default)]
struct Prepared {
    arguments: [usize; 6],
    files: Vec<Descriptor>,
}

/// Returns the arguments of a call, the others being 0.
fn with<const N: usize>(given: [usize; N]) -> Prepared {
    Prepared { arguments: core::array::from_fn(|index| given.get(index).copied().unwrap_or(0)), files: Vec::new() }
}

/// Returns the arguments of a call that needs a descriptor of its own first.
fn with_file<const N: usize>(file: Descriptor, rest: [usize; N]) -> Prepared {
    let arguments = core::array::from_fn(|index| match index {
        0 => file.raw() as usize,
        index => rest.get(index - 1).copied().unwrap_or(0),
    });
    Prepared { arguments, files: vec![file] }
}

/// The objects of all calls.
struct Attack {
    call: SystemCall,
    way: Way,
    /// Paths of this process: of a file, of files that calls make and remove, and of a symbolic link.
    path: CString,
    other: CString,
    link: CString,
    zero: Descriptor,
    /// A pseudo-terminal that controls the session of the attacker.
    terminal: Option<(Descriptor, Descriptor)>,
    windows: [[u16; 4]; 2],
    file: Descriptor,
    directory: Descriptor,
    pipe: (Descriptor, Descriptor),
    full_pipe: (Descriptor, Descriptor),
    datagrams: Descriptor,
    own_address: [u8; LONGEST_ADDRESS],
    listener: Descriptor,
    listener_address: SocketAddr,
    connection: (Descriptor, Descriptor),
    /// Local sockets.
    local: (Descriptor, Descriptor),
    watching: Descriptor,
    receiver: Descriptor,
    right: Descriptor,
    area: usize,
    stacks: usize,
    end: usize,
    /// The listener's address, and one with any port.
    address: [u8; LONGEST_ADDRESS],
    any: [u8; SocketAddress::SIZE],
    soon: TimeSpec,
    now: TimeSpec,
    /// A mask of all harts that there can be.
    harts: u64,
    /// A word that is waited for, as `futex_waitv` has it.
    waited: [u64; 3],
    /// Interval and time of a timer that never comes.
    setting: [u64; 4],
    vector: [usize; 2],
    list: [usize; 2],
    descriptors: [i32; 3],
    poll: [u32; 2],
    /// The set of descriptors of `pselect6`, in which the pipe's reader has its bit.
    set: AtomicU64,
    event: [u8; epoll::Event::SIZE],
    /// A queue for events of files.
    events: Descriptor,
    header: [u32; 2],
    capabilities: [u64; 3],
    limits: [u64; 2],
    size: u32,
    option: u32,
    /// A message with files, and the place for one.
    message: [u8; MessageHeader::SIZE],
    message_vector: [usize; 2],
    /// That message several times, and places for as many, without room for files.
    batch: [[u8; MessageHeader::SIZE_IN_ARRAY]; BATCH],
    places: [[AtomicU64; MessageHeader::SIZE_IN_ARRAY / 8]; BATCH],
    rights: [u32; CONTROL / 4 + SENT],
    place: [AtomicU64; MessageHeader::SIZE / 8],
    received: [AtomicU32; CONTROL / 4 + RECEIVED],
    buffer: Box<[u8; BUFFER]>,
}

/// Writes bytes into words that the kernel changes.
fn store(place: &[AtomicU64], bytes: &[u8]) {
    for (word, bytes) in place.iter().zip(bytes.chunks_exact(8)) {
        word.store(u64::from_le_bytes(core::array::from_fn(|index| bytes[index])), Ordering::Relaxed);
    }
}

fn pipe() -> Result<(Descriptor, Descriptor)> {
    file::pipe(0)
}

/// Begins a session with a pseudo-terminal as its own; returns master and slave.
fn own_terminal() -> Result<(Descriptor, Descriptor)> {
    system::terminal::begin_session()?;
    let master = system::terminal::pseudo_terminal()?;
    let slave = system::terminal::open_slave(master.raw(), open::RDWR)?;
    Ok((master, slave))
}

fn connect(address: SocketAddr) -> Result<Descriptor> {
    let client = network::socket(SOCK_STREAM)?;
    network::connect(client.raw(), address)?;
    Ok(client)
}

impl Attack {
    fn new(call: SystemCall, way: Way) -> Result<Box<Attack>> {
        let own = system::process::number();
        let name = |suffix: &str| CString::new(format!("/tmp/attack-{own}{suffix}")).map_err(|_| Errno::EINVAL);
        let (path, other, link) = (name("")?, name("-other")?, name("-link")?);
        let file = file::open(&path, open::CREAT | open::RDWR, 0o600)?;
        file::write_at(file.raw(), &[7; BUFFER], 0)?;
        raw(SystemCall::SymbolicLink, [at(path.as_c_str()), HERE, at(link.as_c_str()), 0, 0, 0])?;
        let datagrams = network::socket(SOCK_DGRAM)?;
        network::bind(datagrams.raw(), ANY)?;
        let own_address = types::bytes_of_address(network::local_address(datagrams.raw())?).0;
        let listener = network::socket(SOCK_STREAM)?;
        network::bind(listener.raw(), ANY)?;
        network::listen(listener.raw(), 64)?;
        let listener_address = network::local_address(listener.raw())?;
        let client = connect(listener_address)?;
        let connection = (client, network::accept(listener.raw())?.0);
        let full_pipe = pipe()?;
        file::write(full_pipe.1.raw(), &vec![1; PIPE])?;
        let receiver = system::interrupt::receiver(5)?;
        let right = system::interrupt::grant(&receiver)?;
        let epoll = || raw(SystemCall::EpollCreate, [0; 6]).map(Descriptor::from_result);
        let mut attack = Box::new(Attack {
            call,
            way,
            path,
            other,
            link,
            zero: file::open(c"/dev/zero", open::RDWR, 0)?,
            terminal: if call == SystemCall::DeviceControl { Some(own_terminal()?) } else { None },
            windows: [[24, 80, 0, 0], [50, 132, 0, 0]],
            file,
            directory: file::open(c"/bin", open::RDONLY | open::DIRECTORY, 0)?,
            pipe: pipe()?,
            full_pipe,
            datagrams,
            own_address,
            listener,
            listener_address,
            connection,
            local: network::socket_pair(SOCK_DGRAM)?,
            watching: epoll()?,
            events: raw(SystemCall::EventFile, [0; 6]).map(Descriptor::from_result)?,
            receiver,
            right,
            area: system::memory::map(MAPPING)? as usize,
            stacks: system::memory::map(STACKS * STACK)? as usize,
            end: raw(SystemCall::Break, [0; 6])?,
            address: types::bytes_of_address(listener_address).0,
            any: ANY.to_bytes(),
            soon: TimeSpec::from_ns(1000),
            now: TimeSpec::from_ns(0),
            harts: u64::MAX,
            waited: [0, at(&WORD) as u64, u64::from(futex::SIZE_U32)],
            setting: [0, 0, 1_000_000, 0],
            vector: [0; 2],
            list: [0; 2],
            descriptors: [-1; 3],
            poll: [0; 2],
            set: AtomicU64::new(0),
            event: epoll::Event { events: epoll::IN, data: 0 }.to_bytes(),
            header: [version::THREE, 0],
            capabilities: [0; 3],
            limits: [0; 2],
            size: SocketAddress::SIZE as u32,
            option: 1,
            message: [0; MessageHeader::SIZE],
            message_vector: [0; 2],
            batch: [[0; MessageHeader::SIZE_IN_ARRAY]; BATCH],
            places: [const { [const { AtomicU64::new(0) }; MessageHeader::SIZE_IN_ARRAY / 8] }; BATCH],
            rights: [0; CONTROL / 4 + SENT],
            place: [const { AtomicU64::new(0) }; MessageHeader::SIZE / 8],
            received: [const { AtomicU32::new(0) }; CONTROL / 4 + RECEIVED],
            buffer: Box::new([0; BUFFER]),
        });
        attack.vector = [at(&*attack.buffer), BUFFER];
        attack.message_vector = [at(&*attack.buffer), 64];
        let file = attack.file.raw() as u32;
        attack.rights[CONTROL / 4..].fill(file);
        let kind = [socket_option::SOL_SOCKET, message::SCM_RIGHTS];
        attack.rights[..CONTROL / 4].copy_from_slice(&[(CONTROL + 4 * SENT) as u32, 0, kind[0], kind[1]]);
        let message = MessageHeader {
            buffers: at(&attack.message_vector) as u64,
            count: 1,
            control: at(&attack.rights) as u64,
            control_length: (CONTROL + 4 * SENT) as u64,
            ..MessageHeader::default()
        };
        attack.message = message.to_bytes();
        for place in &mut attack.batch {
            place[..MessageHeader::SIZE].copy_from_slice(&attack.message);
        }
        attack.list = [at(PROGRAM), 0];
        attack.poll = [attack.pipe.0.raw() as u32, epoll::IN];
        raw(SystemCall::GetCapabilities, [at(&attack.header), at(&attack.capabilities), 0, 0, 0, 0])?;
        raw(SystemCall::ProcessLimit, [0, limit::CALLS_IN_FLIGHT as usize, 0, at(&attack.limits), 0, 0])?;
        let reader = attack.pipe.0.raw() as usize;
        let add = [attack.watching.raw() as usize, epoll::CTL_ADD as usize, reader, at(&attack.event), 0, 0];
        raw(SystemCall::EpollControl, add)?;
        Ok(attack)
    }

    fn is_asynchronous(&self) -> bool {
        self.way.is_asynchronous()
    }

    /// Makes the objects that the call needs; returns its arguments.
    fn prepare(&self, turn: usize) -> Result<Prepared> {
        for family in [Self::prepare_files, Self::prepare_sockets, Self::prepare_memory, Self::prepare_processes] {
            if let Some(prepared) = family(self, turn)? {
                return Ok(prepared);
            }
        }
        Ok(self.prepare_by_kinds())
    }

    /// Prepares a call on files, pipes, names and epolls.
    fn prepare_files(&self, turn: usize) -> Result<Option<Prepared>> {
        use SystemCall::*;
        let of = |descriptor: &Descriptor| descriptor.raw() as usize;
        let text = |text: &CString| at(text.as_c_str());
        let buffer = at(&*self.buffer);
        Ok(Some(match self.call {
            // A registration that is there is changed: the order in which calls of a ring are made does not matter.
            EpollControl => with([of(&self.watching), epoll::CTL_MOD as usize, of(&self.pipe.0), at(&self.event)]),
            WatchFile => with([of(&self.events), text(&self.path), file_event::ALL as usize]),
            EndWatch => {
                let watch = [of(&self.events), text(&self.path), file_event::ALL as usize, 0, 0, 0];
                with([of(&self.events), raw(WatchFile, watch)?])
            }
            // Nothing is ready before its cause comes.
            EpollWaitWith => {
                with([of(&self.watching), buffer, 8, if self.is_asynchronous() { 0 } else { at(&self.now) }])
            }
            EpollWait => with([of(&self.watching), buffer, 8, if self.is_asynchronous() { usize::MAX } else { 0 }]),
            SendFile | CopyFileRange => {
                self.place[0].store(0, Ordering::Relaxed);
                self.place[1].store(2 * BUFFER as u64, Ordering::Relaxed);
                let (from, to) = (at(&self.place[0]), at(&self.place[1]));
                match self.call {
                    SendFile => with([of(&self.zero), of(&self.file), from, BUFFER]),
                    _ => with([of(&self.file), from, of(&self.file), to, BUFFER, 0]),
                }
            }
            // As many bytes go in as come out.
            Splice => {
                raw(Write, [of(&self.pipe.1), buffer, 64, 0, 0, 0])?;
                with([of(&self.pipe.0), 0, of(&self.zero), 0, 64, 0])
            }
            Tee => with([of(&self.full_pipe.0), of(&self.pipe.1), 1, 0]),
            SpliceMemory => with([of(&self.pipe.1), at(&self.message_vector), 1, 0]),
            Allocate => with([of(&self.file), 3, 0, BUFFER]),
            DuplicateTo => with([of(&self.file), 40, 0]),
            Lock => with([of(&self.file), 2]),
            FileControl => with([of(&self.file), control::GETFL as usize, 0]),
            // Each time the foreground is told of a window of another size.
            DeviceControl => {
                let master = self.terminal.as_ref().map_or(0, |(master, _)| of(master));
                with([master, terminal::SET_WINDOW_SIZE as usize, at(&self.windows[turn % 2])])
            }
            MakeNode => with([HERE, text(&self.other), 0o010_600, 0]),
            MakeDirectory => with([HERE, text(&self.other), 0o700]),
            Unlink => {
                drop(file::open(&self.other, open::CREAT, 0o600)?);
                with([HERE, text(&self.other), 0])
            }
            Mount => {
                let _ = file::make_directory(MOUNT, 0o700);
                let _ = file::unmount(MOUNT, 0);
                with([0, at(MOUNT), at(c"tmpfs"), 0, 0])
            }
            Unmount => {
                let _ = file::make_directory(MOUNT, 0o700);
                let _ = file::mount(MOUNT, c"tmpfs", 0, c"");
                with([at(MOUNT), 0])
            }
            SymbolicLink => with([text(&self.path), HERE, text(&self.other)]),
            Link => with([HERE, text(&self.path), HERE, text(&self.other), 0]),
            Truncate => with([of(&self.file), BUFFER + turn % 2 * MAPPING]),
            ChangeDirectory => with([at(c"/tmp")]),
            Open => with([HERE, text(&self.path), open::RDONLY as usize, 0]),
            Close => {
                let copy = raw(Duplicate, [of(&self.file), 0, 0, 0, 0, 0])?;
                with([copy])
            }
            ReadDirectory => {
                raw(Seek, [of(&self.directory), 0, 0, 0, 0, 0])?;
                with([of(&self.directory), buffer, BUFFER])
            }
            Read if self.is_asynchronous() => with([of(&self.pipe.0), buffer, 1]),
            ReadVector if self.is_asynchronous() => with([of(&self.pipe.0), at(&self.vector), 1]),
            Write if self.is_asynchronous() => with([of(&self.full_pipe.1), buffer, BUFFER]),
            WriteVector if self.is_asynchronous() => with([of(&self.full_pipe.1), at(&self.vector), 1]),
            Read | Write => with([of(&self.zero), buffer, BUFFER]),
            ReadVector | WriteVector => with([of(&self.zero), at(&self.vector), 1]),
            ReadVectorAt | WriteVectorAt | ReadVectorWith | WriteVectorWith => {
                with([of(&self.file), at(&self.vector), 1, 0])
            }
            SynchroniseRange | ReadAhead => with([of(&self.file), 0, BUFFER, 0]),
            Poll => with([at(&self.poll), 1, if self.is_asynchronous() { 0 } else { at(&self.now) }]),
            Select => {
                let time = if self.is_asynchronous() { 0 } else { at(&self.now) };
                let reader = of(&self.pipe.0);
                // The last call has changed it.
                self.set.store(1 << reader, Ordering::Relaxed);
                with([reader + 1, at(&self.set), 0, 0, time, 0])
            }
            ChangeDirectoryTo => with([of(&self.directory)]),
            CloseRange => {
                raw(DuplicateTo, [of(&self.file), 60, 0, 0, 0, 0])?;
                with([60, 60, 0])
            }
            SetAttribute | SetAttributeOfLink | GetAttribute | GetAttributeOfLink => {
                with([text(&self.path), at(c"user.name"), buffer, BUFFER, 0])
            }
            SetAttributeOfFile | GetAttributeOfFile => with([of(&self.file), at(c"user.name"), buffer, BUFFER, 0]),
            RemoveAttribute | RemoveAttributeOfLink => with([text(&self.path), at(c"user.name")]),
            RemoveAttributeOfFile => with([of(&self.file), at(c"user.name")]),
            TruncateAt => with([text(&self.path), BUFFER + turn % 2 * MAPPING]),
            ChangeOwnerAt => with([HERE, text(&self.path), 0, 0, 0]),
            SetTimes => with([HERE, text(&self.path), 0, 0]),
            ReadLink => with([HERE, text(&self.link), buffer, BUFFER]),
            Rename => {
                drop(file::open(&self.other, open::CREAT, 0o600)?);
                with([HERE, text(&self.other), HERE, text(&self.path), 0])
            }
            _ => return Ok(None),
        }))
    }

    /// Prepares a call on sockets.
    fn prepare_sockets(&self, _: usize) -> Result<Option<Prepared>> {
        use SystemCall::*;
        let of = |descriptor: &Descriptor| descriptor.raw() as usize;
        let buffer = at(&*self.buffer);
        Ok(Some(match self.call {
            Socket => with([2, SOCK_DGRAM as usize, 0]),
            Bind => with_file(network::socket(SOCK_DGRAM)?, [at(&self.any), SocketAddress::SIZE]),
            Listen => {
                let socket = network::socket(SOCK_STREAM)?;
                network::bind(socket.raw(), ANY)?;
                with_file(socket, [8])
            }
            Accept | AcceptWith => {
                let mut prepared = with([of(&self.listener), 0, 0, 0]);
                if !self.is_asynchronous() {
                    prepared.files.push(connect(self.listener_address)?);
                }
                prepared
            }
            Connect => with_file(network::socket(SOCK_STREAM)?, [at(&self.address), SocketAddress::SIZE]),
            SendTo => with([of(&self.datagrams), buffer, 64, 0, at(&self.own_address), SocketAddress::SIZE]),
            ReceiveFrom => {
                if !self.is_asynchronous() {
                    self.send()?;
                }
                with([of(&self.datagrams), buffer, BUFFER, 0, 0, 0])
            }
            SocketPair => with([1, SOCK_STREAM as usize, 0, buffer]),
            SendMessage => with([of(&self.local.0), at(&self.message), 0]),
            ReceiveMessage => {
                if !self.is_asynchronous() {
                    self.send_files()?;
                }
                with([of(&self.local.1), self.place(), 0])
            }
            SendMessages => with([of(&self.local.0), at(&self.batch), BATCH, 0]),
            ReceiveMessages => {
                if !self.is_asynchronous() {
                    (0..BATCH).try_for_each(|_| self.send_files())?;
                }
                with([of(&self.local.1), self.places(), BATCH, message::WAITFORONE as usize, 0])
            }
            GetSocketName => with([of(&self.datagrams), buffer, at(&self.size)]),
            GetPeerName => with([of(&self.connection.0), buffer, at(&self.size)]),
            GetSocketOption | SetSocketOption => {
                let (level, option) = (socket_option::SOL_SOCKET as usize, socket_option::SO_REUSEADDR as usize);
                let last = if self.call == SetSocketOption { 4 } else { at(&self.size) };
                with([of(&self.listener), level, option, at(&self.option), last])
            }
            Shutdown => {
                let client = connect(self.listener_address)?;
                let (server, _) = network::accept(self.listener.raw())?;
                let mut prepared = with_file(client, [SHUT_RDWR as usize]);
                prepared.files.push(server);
                prepared
            }
            _ => return Ok(None),
        }))
    }

    /// Prepares a call that changes the address space.
    fn prepare_memory(&self, turn: usize) -> Result<Option<Prepared>> {
        use SystemCall::*;
        let buffer = at(&*self.buffer);
        Ok(Some(match self.call {
            Break => with([self.end + turn % 2 * MAPPING]),
            Unmap => with([system::memory::map(MAPPING)? as usize, MAPPING]),
            Remap => with([system::memory::map(MAPPING)? as usize, MAPPING, 2 * MAPPING, 1, 0]),
            SynchroniseMemory => with([self.area, MAPPING, 4]),
            LockMemory | UnlockMemory | LockMemoryWith => with([self.area, MAPPING]),
            LockAllMemory => with([3]),
            Residence => with([self.area, MAPPING, buffer]),
            FlushInstructions => with([0, 0]),
            AdviseMemory => with([self.area, MAPPING, advice::DONTNEED as usize]),
            Protect => {
                let writable = if turn.is_multiple_of(2) { 0 } else { protection::WRITE };
                with([self.area, MAPPING, (protection::READ | writable) as usize])
            }
            Map => {
                let flags = (mapping::PRIVATE | mapping::ANONYMOUS) as usize;
                with([0, MAPPING, (protection::READ | protection::WRITE) as usize, flags, usize::MAX, 0])
            }
            _ => return Ok(None),
        }))
    }

    /// Prepares a call about processes, workers, waits, limits and user interrupts.
    fn prepare_processes(&self, turn: usize) -> Result<Option<Prepared>> {
        use SystemCall::*;
        let of = |descriptor: &Descriptor| descriptor.raw() as usize;
        let buffer = at(&*self.buffer);
        Ok(Some(match self.call {
            GetCapabilities => with([at(&self.header), buffer]),
            SetCapabilities => with([at(&self.header), at(&self.capabilities)]),
            Futex if self.is_asynchronous() => with([at(&WORD), futex::WAIT as usize, 0, 0]),
            Futex => with([at(&WORD), futex::WAKE as usize, 1]),
            FutexWaits => with([at(&self.waited), 1, 0, at(&self.now), 1]),
            QueueOpen => with([QUEUE.as_ptr() as usize, NEW_QUEUE, 0o600, QUEUE_ATTRIBUTES.as_ptr() as usize]),
            QueueUnlink => {
                let queue = raw(
                    QueueOpen,
                    [QUEUE.as_ptr() as usize, NEW_QUEUE, 0o600, QUEUE_ATTRIBUTES.as_ptr() as usize, 0, 0],
                )?;
                raw(Close, [queue, 0, 0, 0, 0, 0])?;
                with([QUEUE.as_ptr() as usize])
            }
            QueueSend => {
                let _ = raw(QueueReceive, [self.queue()?, buffer, BUFFER, 0, 0, 0]);
                with([self.queue()?, buffer, BUFFER, 0, 0])
            }
            QueueReceive => {
                let _ = raw(QueueSend, [self.queue()?, buffer, BUFFER, 0, 0, 0]);
                with([self.queue()?, buffer, BUFFER, 0, 0])
            }
            QueueNotify => with([self.queue()?, 0]),
            QueueAttributes => with([self.queue()?, 0, buffer]),
            SemaphoreGet => with([0, 8, 0o1600]),
            SemaphoreControl => with([self.semaphores()?, 0, 12, 0]),
            // Zeros: the first one is 0.
            SemaphoreOperate | SemaphoreOperateUntil => with([self.semaphores()?, at(&self.now), 1, 0]),
            SegmentGet => with([0, MAPPING, 0o1600]),
            SegmentControl => with([self.segment()?, 2, buffer]),
            SegmentAttach => with([self.segment()?, 0, 0]),
            SegmentDetach => with([raw(SegmentAttach, [self.segment()?, 0, 0, 0, 0, 0])?]),
            MemoryBarrier => with([types::memory_barrier::GLOBAL as usize, 0, 0]),
            ProcessFile => with([system::process::number() as usize, 0]),
            SignalProcessFile => with([self.process_file()?, 0, 0, 0]),
            TakeFile => with([self.process_file()?, 0, 0]),
            SetRobustList => with([0, futex::ROBUST_HEAD]),
            Sleep => with([at(&self.soon), 0]),
            SleepOn => with([1, 0, at(&self.soon)]),
            TimerFileSet => with([self.timer_file()?, 0, at(&self.setting), 0]),
            TimerFileGet => with([self.timer_file()?, buffer]),
            GetIntervalTimer => with([0, buffer]),
            SetIntervalTimer => with([0, at(&self.setting), 0]),
            TimerFile => with([1, 0]),
            SignalFile => with([usize::MAX, buffer, 8, 0]),
            TimerCreate => with([1, 0, buffer]),
            TimerGet => with([self.timer()?, buffer]),
            TimerSet => with([self.timer()?, 0, at(&self.setting), 0]),
            TimerOverrun | TimerDelete => with([self.timer()?]),
            ProcessControl => with([types::process_control::GET_NAME as usize, buffer]),
            Kill | KillThread | SignalQueue => with([system::process::number() as usize, 0]),
            KillThreadOf | SignalQueueThread => {
                with([system::process::number() as usize, system::process::number() as usize, 0])
            }
            SignalAction => with([10, 0, buffer, 8]),
            SignalMask => with([0, 0, buffer, 8]),
            SignalPending => with([buffer, 8]),
            SignalStack => with([0, buffer]),
            SignalWait => with([at(&WORD), 0, at(&self.now), 8]),
            Wait => with([self.start_program()?, 0, 0, 0]),
            WaitIdentified => {
                with([wait_kind::PROCESS as usize, self.start_program()?, buffer, types::WEXITED as usize])
            }
            GetLimit => with([limit::CALLS_IN_FLIGHT as usize, buffer]),
            SetLimit => with([limit::CALLS_IN_FLIGHT as usize, at(&self.limits)]),
            // Zeros, which stand for the usual class.
            SetClass => with([0, 0, at(&self.now)]),
            SetClassPriority => with([0, at(&self.now)]),
            SetAffinity => with([0, 8, at(&self.harts)]),
            ProcessLimit => with([0, limit::CALLS_IN_FLIGHT as usize, at(&self.limits), buffer]),
            Spawn => with(self.program()),
            WorkerCreate => with([leave as *const () as usize, self.stacks + (turn % STACKS + 1) * STACK, 0, 0]),
            WorkerWait => with([0, 1000]),
            Cancel => {
                let wait = [at(&WORD), futex::WAIT as usize, 0, 0, 0, 0];
                // SAFETY: the word lives for ever.
                unsafe { system::raw::syscall_asynchronous(Futex as usize, wait, 0, 0, CANCELLED) };
                with([CANCELLED as usize])
            }
            InterruptReceiver => with([6]),
            InterruptGrant => with([of(&self.receiver), 0]),
            InterruptOpen => with([system::process::number() as usize, 5]),
            InterruptSend | InterruptPage => with([of(&self.right)]),
            InterruptRevoke => with_file(system::interrupt::grant(&self.receiver)?, []),
            RingSetup => with([ENTRIES, 0]),
            SetScheduling => with([0, scheduling::MODE as usize, 0, 0]),
            Snapshot => with([trace::subject::PROCESSES as usize, 0, buffer, BUFFER]),
            // The log is shared, and left unchanged.
            Log => with([buffer, 0]),
            // Coroutines, as before: other ways of making this call do not exist.
            KernelSide => with([0]),
            _ => return Ok(None),
        }))
    }

    /// Gives each argument a valid value of its kind.
    fn prepare_by_kinds(&self) -> Prepared {
        let mut prepared = with([]);
        for (place, (_, kind)) in prepared.arguments.iter_mut().zip(self.call.arguments()) {
            *place = match kind {
                Argument::Number => 0,
                Argument::Descriptor => self.file.raw() as usize,
                Argument::Input | Argument::Output => at(&*self.buffer),
                Argument::Path => at(self.path.as_c_str()),
                Argument::Length => BUFFER,
            };
        }
        prepared
    }

    /// Returns the one timer behind a descriptor, 41; makes it if there is none.
    fn timer_file(&self) -> Result<usize> {
        if raw(SystemCall::TimerFileGet, [41, at(&*self.buffer), 0, 0, 0, 0]).is_err() {
            let timer = Descriptor::from_result(raw(SystemCall::TimerFile, [1, 0, 0, 0, 0, 0])?);
            raw(SystemCall::DuplicateTo, [timer.raw() as usize, 41, 0, 0, 0, 0])?;
        }
        Ok(41)
    }

    /// Returns the one descriptor of a queue of messages, 43; makes it if there is none.
    fn queue(&self) -> Result<usize> {
        if raw(SystemCall::QueueAttributes, [43, 0, 0, 0, 0, 0]).is_err() {
            let made = raw(
                SystemCall::QueueOpen,
                [QUEUE.as_ptr() as usize, NEW_QUEUE, 0o600, QUEUE_ATTRIBUTES.as_ptr() as usize, 0, 0],
            )?;
            let queue = Descriptor::from_result(made);
            raw(SystemCall::DuplicateTo, [queue.raw() as usize, 43, 0, 0, 0, 0])?;
        }
        Ok(43)
    }

    /// Returns the number of the one set of semaphores that has a key of this process; makes it if there is none.
    fn semaphores(&self) -> Result<usize> {
        raw(SystemCall::SemaphoreGet, [system::process::number() as usize, 8, 0o1600, 0, 0, 0])
    }

    /// Returns the number of the one segment that has a key of this process; makes it if there is none.
    fn segment(&self) -> Result<usize> {
        raw(SystemCall::SegmentGet, [system::process::number() as usize, MAPPING, 0o1600, 0, 0, 0])
    }

    /// Returns the one descriptor of this process, 42; makes it if there is none.
    fn process_file(&self) -> Result<usize> {
        if raw(SystemCall::SignalProcessFile, [42, 0, 0, 0, 0, 0]).is_err() {
            let own = system::process::number() as usize;
            let file = Descriptor::from_result(raw(SystemCall::ProcessFile, [own, 0, 0, 0, 0, 0])?);
            raw(SystemCall::DuplicateTo, [file.raw() as usize, 42, 0, 0, 0, 0])?;
        }
        Ok(42)
    }

    /// Returns the number of the one timer, 0; makes it if there is none.
    fn timer(&self) -> Result<usize> {
        let buffer = at(&*self.buffer);
        if raw(SystemCall::TimerGet, [0, buffer, 0, 0, 0, 0]).is_err() {
            raw(SystemCall::TimerCreate, [1, 0, buffer, 0, 0, 0])?;
        }
        Ok(0)
    }

    fn program(&self) -> [usize; 5] {
        [at(PROGRAM), at(&self.list), at(&self.list[1]), at(&self.descriptors), usize::MAX]
    }

    fn start_program(&self) -> Result<usize> {
        let [path, arguments, environment, descriptors, priority] = self.program();
        raw(SystemCall::Spawn, [path, arguments, environment, descriptors, priority, 0])
    }

    /// Sends a datagram to its own socket.
    fn send(&self) -> Result<()> {
        let address = [at(&self.own_address), SocketAddress::SIZE];
        let socket = self.datagrams.raw() as usize;
        raw(SystemCall::SendTo, [socket, at(&*self.buffer), 64, 0, address[0], address[1]]).map(drop)
    }

    /// Sends a message with files through the local sockets.
    fn send_files(&self) -> Result<()> {
        let flags = message::DONTWAIT as usize;
        raw(SystemCall::SendMessage, [self.local.0.raw() as usize, at(&self.message), flags, 0, 0, 0]).map(drop)
    }

    /// Makes the place for a message ready; returns its address. Calls in flight have one in common, and take no files.
    fn place(&self) -> usize {
        let room = if self.is_asynchronous() { 0 } else { size_of_val(&self.received) as u64 };
        store(&self.place, &self.header_of_a_place(room));
        at(&self.place)
    }

    /// Makes the places of a batch ready; returns their address.
    fn places(&self) -> usize {
        let header = self.header_of_a_place(0);
        self.places.iter().for_each(|place| store(place, &header));
        at(&self.places)
    }

    fn header_of_a_place(&self, room: u64) -> [u8; MessageHeader::SIZE] {
        let header = MessageHeader {
            buffers: at(&self.message_vector) as u64,
            count: 1,
            control: if room == 0 { 0 } else { at(&self.received) as u64 },
            control_length: room,
            ..MessageHeader::default()
        };
        header.to_bytes()
    }

    /// Makes a call that waits go on.
    fn cause(&self, prepared: &mut Prepared) {
        use SystemCall::*;
        let buffer = at(&*self.buffer);
        let _ = match self.call {
            Read | ReadVector | EpollWait | EpollWaitWith | Poll | Select => {
                raw(Write, [self.pipe.1.raw() as usize, buffer, 1, 0, 0, 0])
            }
            Write | WriteVector => raw(Read, [self.full_pipe.0.raw() as usize, buffer, BUFFER, 0, 0, 0]),
            Futex => raw(Futex, [at(&WORD), futex::WAKE as usize, 1, 0, 0, 0]),
            ReceiveFrom => self.send().map(|()| 0),
            ReceiveMessage | ReceiveMessages => self.send_files().map(|()| 0),
            Accept | AcceptWith => connect(self.listener_address).map(|client| {
                prepared.files.push(client);
                0
            }),
            _ => Ok(0),
        };
    }

    /// Undoes the effect of a call.
    fn undo(&self, result: Result<usize>) {
        use SystemCall::*;
        let Ok(result) = result else { return };
        match self.call {
            SemaphoreGet => {
                let _ = raw(SemaphoreControl, [result, 0, 0, 0, 0, 0]);
            }
            SegmentGet => {
                let _ = raw(SegmentControl, [result, 0, 0, 0, 0, 0]);
            }
            SegmentAttach => {
                let _ = raw(SegmentDetach, [result, 0, 0, 0, 0, 0]);
            }
            TimerCreate => {
                let _ = raw(TimerDelete, [self.read(0).into(), 0, 0, 0, 0, 0]);
            }
            Open | QueueOpen | MemoryFile | Duplicate | EventCounter | EventFile | TimerFile | SignalFile
            | EpollCreate | Socket | Accept | AcceptWith | InterruptReceiver | InterruptGrant | InterruptOpen
            | ProcessFile | TakeFile => drop(Descriptor::from_result(result)),
            Pipe | SocketPair => {
                for place in [0, 4] {
                    let bytes = [0, 1, 2, 3].map(|byte| self.read(place + byte));
                    drop(Descriptor::from_raw(i32::from_le_bytes(bytes)));
                }
            }
            Connect => drop(network::accept(self.listener.raw())),
            EpollWait | EpollWaitWith | Poll | Select if self.is_asynchronous() => {
                // Several calls may have ended for one byte.
                let is_readable = raw(Poll, [at(&self.poll), 1, at(&self.now), 0, 0, 0]) == Ok(1);
                if is_readable {
                    let _ = raw(Read, [self.pipe.0.raw() as usize, at(&*self.buffer), 1, 0, 0, 0]);
                }
            }
            SendMessage | SendMessages => {
                let flags = message::DONTWAIT as usize;
                let socket = self.local.1.raw() as usize;
                // A read ends at the files of the next message.
                for _ in 0..if self.call == SendMessage { 1 } else { result } {
                    let _ = raw(ReceiveFrom, [socket, at(&*self.buffer), BUFFER, flags, 0, 0]);
                }
            }
            ReceiveMessage if !self.is_asynchronous() => {
                for number in &self.received[CONTROL / 4..] {
                    drop(Descriptor::from_raw(number.load(Ordering::Relaxed) as i32));
                }
            }
            SendTo => {
                let flags = message::DONTWAIT as usize;
                let socket = self.datagrams.raw() as usize;
                let _ = raw(ReceiveFrom, [socket, at(&*self.buffer), BUFFER, flags, 0, 0]);
            }
            Tee | SpliceMemory => {
                let _ = raw(Read, [self.pipe.0.raw() as usize, at(&*self.buffer), result, 0, 0, 0]);
            }
            MakeDirectory => drop(file::unlink(&self.other, AT_REMOVEDIR)),
            SymbolicLink | Link | MakeNode => drop(file::unlink(&self.other, 0)),
            Map => {
                let _ = raw(Unmap, [result, MAPPING, 0, 0, 0, 0]);
            }
            Remap => {
                let _ = raw(Unmap, [result, 2 * MAPPING, 0, 0, 0, 0]);
            }
            Spawn => {
                let _ = raw(Wait, [result, 0, 0, 0, 0, 0]);
            }
            _ => {}
        }
    }

    fn read(&self, place: usize) -> u8 {
        // SAFETY: a byte of the buffer, which the kernel has written.
        unsafe { core::ptr::read_volatile(&raw const self.buffer[place]) }
    }

    /// Makes the call in place.
    fn make(&self, arguments: [usize; 6], turn: usize) -> Result<usize> {
        match self.call {
            SystemCall::Clone | SystemCall::CloneWith => self.run_thread(turn),
            call => raw(call, arguments),
        }
    }

    /// Starts a thread, and waits for its end.
    fn run_thread(&self, turn: usize) -> Result<usize> {
        let stack = self.stacks + (turn % STACKS + 1) * STACK;
        let whole = ((stack - STACK) as *mut u8, STACK);
        // SAFETY: the stack is no other thread's, since the last one has ended.
        let thread = unsafe {
            match self.call {
                SystemCall::CloneWith => system::thread::start_on(leave_thread, 0, whole, 0, &NUMBER)?,
                _ => system::thread::start(leave_thread, 0, stack as *mut u8, 0, &NUMBER)?,
            }
        };
        loop {
            match NUMBER.load(Ordering::Acquire) {
                0 => return Ok(thread as usize),
                number => drop(system::thread::futex_wait(&NUMBER, number, None)),
            }
        }
    }

    /// Judges the first result.
    fn judge(&self, result: Result<usize>) -> Outcome {
        let is_refused = REFUSED.iter().any(|(call, _)| *call == self.call);
        match result {
            Err(error) if !is_refused => Err(format!("{:?} {} fails: {error:?}", self.way, self.call.name())),
            _ => Ok(()),
        }
    }
}

/// Runs the attack with this way and this call.
pub fn run(way: &str, name: &str) -> Outcome {
    let call = SystemCall::ALL.iter().copied().find(|call| call.name() == name);
    let found = WAYS.iter().find(|(other, _)| *other == way);
    let (Some(call), Some(&(_, way))) = (call, found) else { return Err("no such attack".into()) };
    match call {
        SystemCall::Execute => return execute(c"execve"),
        SystemCall::ExecuteAt => return execute(c"execveat"),
        _ => {}
    }
    let attack = attempt!(Attack::new(call, way));
    if call == SystemCall::RingEnter {
        attempt!(system::worker::ring_setup(ENTRIES, 0));
    }
    match way {
        Way::WaitingThreads => attempt!(choose(KernelSide::WaitingThreads)),
        Way::RetryingThreads => attempt!(choose(KernelSide::RetryingThreads)),
        Way::PollingThread => attempt!(choose(KernelSide::PollingThread)),
        _ => {}
    }
    if way.is_asynchronous() { InFlight::new(&attack)?.run() } else { directly(&attack) }
}

fn directly(attack: &Attack) -> Outcome {
    for turn in 0.. {
        // Without room for its objects, the call is made when others are gone: connections end a little later.
        let Ok(prepared) = attack.prepare(turn) else { continue };
        let result = attack.make(prepared.arguments, turn);
        if turn == 0 {
            attack.judge(result)?;
        }
        attack.undo(result);
        drop(prepared);
    }
    Ok(())
}

/// Executes this program again, with the same arguments.
fn execute(name: &CStr) -> Outcome {
    let words = [c"bench", c"fairness", c"budget_worst", c"act", c"direct", name].map(CStr::as_ptr);
    let list: Vec<_> = words.into_iter().chain([core::ptr::null()]).collect();
    let [path, arguments, variables] = [at(OWN_PATH), list.as_ptr() as usize, at(&list[6])];
    attempt!(match name == c"execve" {
        true => raw(SystemCall::Execute, [path, arguments, variables, 0, 0, 0]),
        false => raw(SystemCall::ExecuteAt, [HERE, path, arguments, variables, 0, 0]),
    });
    Ok(())
}

/// Calls in flight, whose tokens are their places and 1.
struct InFlight<'a> {
    attack: &'a Attack,
    completions: Completions<'static>,
    /// The ring for requests, if the calls go through it.
    requests: Option<(Requests<'static>, Producer)>,
    calls: Vec<Option<Prepared>>,
    free: Vec<usize>,
    is_judged: bool,
}

impl<'a> InFlight<'a> {
    fn new(attack: &'a Attack) -> core::result::Result<InFlight<'a>, String> {
        let ring = abi_unix::types::auxiliary::COPS_COMPLETION_RING;
        let address = system::start::auxiliary_value(ring).unwrap_or(0) as usize;
        // SAFETY: the kernel maps the ring there for the process's life; every word of it is atomic. The runtime takes
        // no completions meanwhile: its executor does not run.
        let completions = unsafe {
            let entries = (address + completion::ENTRIES_OFFSET) as *const completion::Entry;
            let entries = core::slice::from_raw_parts(entries, completion::INITIAL_CAPACITY);
            Completions::new(&*(address as *const CompletionHeader), entries)
        };
        let requests = if attack.way == Way::Ring { Some(attempt!(requests(ENTRIES, 0))) } else { None };
        Ok(InFlight {
            attack,
            completions,
            requests,
            calls: (0..MOST).map(|_| None).collect(),
            free: (0..MOST).collect(),
            is_judged: false,
        })
    }

    fn run(&mut self) -> Outcome {
        let mut turn = 0;
        loop {
            let mut causes = Vec::new();
            // One call at a time, or a batch through the ring.
            let batch = if self.requests.is_some() { ENTRIES / 16 } else { 1 };
            for _ in 0..batch {
                turn += 1;
                if let Some(place) = self.begin(turn)? {
                    causes.push(place);
                }
            }
            if self.requests.is_some() {
                let _ = system::worker::ring_enter(0, 0);
            }
            for place in causes {
                if let Some(prepared) = &mut self.calls[place] {
                    self.attack.cause(prepared);
                }
            }
            self.end_some()?;
        }
    }

    /// Makes a call; returns its place if it is in flight.
    fn begin(&mut self, turn: usize) -> core::result::Result<Option<usize>, String> {
        let Some(place) = self.free.pop() else {
            system::worker::yield_now();
            return Ok(None);
        };
        let Ok(prepared) = self.attack.prepare(turn) else {
            self.free.push(place);
            return Ok(None);
        };
        let (call, token) = (self.attack.call as usize, place as u64 + 1);
        let result = match &mut self.requests {
            Some((requests, producer)) => {
                let arguments = prepared.arguments.map(|argument| argument as u64);
                let entry = Request { call: system::raw::asynchronous_number(call, 0) as u64, token, arguments };
                match requests.submit(producer, entry, request::urgency(Priority::HIGHEST)) {
                    Ok(()) => WILL_BE_POSTED,
                    // The call was not made.
                    Err(_) => {
                        self.free.push(place);
                        return Ok(None);
                    }
                }
            }
            // SAFETY: as in `raw`; the objects stay until the completion has come.
            None => unsafe { system::raw::syscall_asynchronous(call, prepared.arguments, 0, 0, token) },
        };
        self.calls[place] = Some(prepared);
        if result != WILL_BE_POSTED {
            self.end(place, errno::decode(result))?;
            return Ok(None);
        }
        Ok(Some(place))
    }

    /// Takes the completions that have come.
    fn end_some(&mut self) -> Outcome {
        while let Some(completion) = self.completions.take() {
            if (1..=MOST as u64).contains(&completion.token) {
                self.end(completion.token as usize - 1, errno::decode(completion.result as usize))?;
            }
        }
        Ok(())
    }

    fn end(&mut self, place: usize, result: Result<usize>) -> Outcome {
        if let Some(prepared) = self.calls[place].take() {
            self.free.push(place);
            if !self.is_judged {
                self.is_judged = true;
                self.attack.judge(result)?;
            }
            self.attack.undo(result);
            drop(prepared);
        }
        Ok(())
    }
}

/// Makes a request ring of the calling worker, and room for so many completions; 0 leaves that as it is.
pub fn requests(entries: usize, completions: usize) -> Result<(Requests<'static>, Producer)> {
    let address = system::worker::ring_setup(entries, completions)?;
    // SAFETY: the kernel has mapped the ring there, and all of it is atomic words.
    let requests = unsafe {
        let places = core::slice::from_raw_parts((address + request::ENTRIES_OFFSET) as *const _, entries);
        Requests::new(&*(address as *const RequestHeader), places)
    };
    Ok((requests, Producer::new(entries)))
}
