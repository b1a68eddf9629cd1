//! Every call of the table in every way to make it, repeated for ever by a process with a budget of a tenth of the
//! machine: the time that a second process, which never rests, loses.
//!
//! A call that creates objects, and so would soon fail for ever, is followed by its opposite (`undo`); `arguments`
//! gives each call meaningful arguments; [`EXCEPTIONS`] lists the calls that cannot be repeated, with the reason.

use alloc::string::{String, ToString};
use core::sync::atomic::{AtomicU64, Ordering};

use abi_queue::{Request, RequestHeader, completion, request};
use abi_unix::call::{Argument, Caller, Waiting};
use abi_unix::types::{
    SOCK_DGRAM, SOCK_NONBLOCK, SOCK_STREAM, SocketAddress, TimeSpec, futex, mapping, message, open, protection,
    scheduling,
};
use abi_unix::{Errno, errno};
use cops::Priority;
use cops::process::Child;
use cops::system::kernel_side::{KernelSide, choose};
use cops::system::{self, SystemCall};
use cops::time::Duration;
use ring::{Producer, Requests};

use crate::{Outcome, attempt, figure, now};

use super::{accomplice, end};

const MS: u64 = 1_000_000;
/// A tenth of the time of the one hart.
const BUDGET: (u64, u64) = (10 * MS, 100 * MS);
/// Watched time: whole periods, after a start-up time.
const WATCHED: Duration = Duration::from_millis(1000);
const BEFORE: Duration = Duration::from_millis(200);
const VICTIM: Priority = Priority::saturating(31);
/// Entries of an attacker's request ring.
const ENTRIES: usize = 256;

/// Calls that are not repeated, with the reason.
const EXCEPTIONS: &[(SystemCall, &str)] =
    &[(SystemCall::Exit, "ends the caller; `spawn` repeats processes that exit"), (SystemCall::ExitGroup, "as exit")];

/// The way in which a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Direct,
    Asynchronous,
    Ring,
    WaitingThreads,
    RetryingThreads,
    PollingThread,
}

const WAYS: [(&str, Way); 6] = [
    ("direct", Way::Direct),
    ("asynchronous", Way::Asynchronous),
    ("ring", Way::Ring),
    ("waiting", Way::WaitingThreads),
    ("retrying", Way::RetryingThreads),
    ("polling", Way::PollingThread),
];

impl Way {
    /// Returns whether this way differs from [`Way::Direct`] for a call.
    fn is_for(self, call: SystemCall) -> bool {
        match self {
            Way::Direct => true,
            Way::Ring => call.caller() == Caller::Anyone,
            _ => call.waiting() == Waiting::Possible && call != SystemCall::WorkerWait,
        }
    }
}

/// Number of times [`BEFORE`] in which an attacker's children must have ended.
const PATIENCE: usize = 200;

/// Measures all pairs, or those of the calls in the next argument, separated by commas.
pub async fn measure() -> Outcome {
    let chosen = crate::argument(3).unwrap_or_default();
    let is_chosen = |name: &str| chosen.is_empty() || chosen.split(',').any(|one| one == name);
    let victim = attempt!(accomplice("budget_worst").argument("victim").priority(VICTIM).spawn());
    attempt!(system::scheduling::set_budget(victim.number(), None, BUDGET.1));
    let (mut worst, mut pairs) = ((0.0, String::new()), 0);
    for (word, way) in WAYS {
        for &call in SystemCall::ALL {
            if !way.is_for(call) || !is_chosen(call.name()) || EXCEPTIONS.iter().any(|(other, _)| *other == call) {
                continue;
            }
            let share = attack(&victim, word, call).await?;
            cops::println!("{word} {}: {share:.2} %", call.name());
            if share > worst.0 {
                worst = (share, alloc::format!("{word} {}", call.name()));
            }
            pairs += 1;
        }
    }
    end(victim).await?;
    cops::println!("the worst is {}", worst.1);
    figure("budget_worst_percent", worst.0, "percent of the machine");
    figure("budget_pairs", f64::from(pairs), "calls and ways");
    Ok(())
}

/// Returns the victim's loss by one attack, in percent.
async fn attack(victim: &Child, way: &str, call: SystemCall) -> Result<f64, String> {
    let processes = || system::system::counter(abi_unix::Counter::Processes).map_err(|error| alloc::format!("{error}"));
    let others = processes()?;
    let attacker = accomplice("budget_worst").argument(way).argument(call.name()).priority(Priority::HIGHEST);
    let attacker = attempt!(attacker.spawn());
    attempt!(system::scheduling::set_privilege(attacker.number(), false));
    attempt!(system::scheduling::set_budget(attacker.number(), Some(BUDGET.0), BUDGET.1));
    cops::sleep(BEFORE).await;
    let before = attempt!(system::scheduling::get(victim.number())).cpu_ns;
    let start = now();
    cops::sleep(WATCHED).await;
    let passed = now() - start;
    let had = attempt!(system::scheduling::get(victim.number())).cpu_ns - before;
    if system::scheduling::get(attacker.number()).is_err() {
        return Err(alloc::format!("the attacker with {way} {} has ended", call.name()));
    }
    end(attacker).await?;
    // The attacker's children have their own share of the rest of its budget, and must not count for the next one.
    for _ in 0..PATIENCE {
        if processes()? <= others {
            break;
        }
        cops::sleep(BEFORE).await;
    }
    Ok(100.0 - had as f64 / passed as f64 * 100.0)
}

/// The objects of the calls.
struct Things {
    zero: usize,
    file: usize,
    reader: usize,
    writer: usize,
    datagrams: usize,
    listener: usize,
    epoll: usize,
    counter: usize,
    receiver: usize,
    own_address: [u8; SocketAddress::SIZE],
    time: TimeSpec,
    no_time: TimeSpec,
    word: u32,
    vector: [usize; 2],
    path: [u8; 16],
    program: [u8; 16],
    list: [usize; 2],
    descriptors: [i32; 3],
    buffer: [u8; 4096],
}

fn raw(call: SystemCall, arguments: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the arguments are those of `arguments` and `undo`: memory of the things, which lives for ever.
    errno::decode(unsafe { system::raw::syscall(call as usize, arguments) })
}

fn at<T>(thing: &T) -> usize {
    core::ptr::from_ref(thing) as usize
}

impl Things {
    fn make() -> Result<alloc::boxed::Box<Things>, Errno> {
        let keep = |descriptor: system::Descriptor| descriptor.into_raw() as usize;
        let file = system::file::open(c"/tmp/attack", open::CREAT | open::RDWR, 0o600)?;
        let (reader, writer) = system::file::pipe(0)?;
        let datagrams = system::network::socket(SOCK_DGRAM)?;
        let own = SocketAddress { address: [127, 0, 0, 1], port: 4242 };
        system::network::bind(datagrams.raw(), own)?;
        let listener = system::network::socket(SOCK_STREAM | SOCK_NONBLOCK)?;
        system::network::bind(listener.raw(), SocketAddress { address: [127, 0, 0, 1], port: 0 })?;
        system::network::listen(listener.raw(), 8)?;
        let things = Things {
            zero: keep(system::file::open(c"/dev/zero", open::RDWR, 0)?),
            file: keep(file),
            reader: keep(reader),
            writer: keep(writer),
            datagrams: keep(datagrams),
            listener: keep(listener),
            epoll: raw(SystemCall::EpollCreate, [0; 6])?,
            counter: raw(SystemCall::EventCounter, [1, 0, 0, 0, 0, 0])?,
            receiver: raw(SystemCall::InterruptReceiver, [5, 0, 0, 0, 0, 0])?,
            own_address: own.to_bytes(),
            time: TimeSpec::from_ns(1),
            no_time: TimeSpec::from_ns(0),
            word: 0,
            vector: [0; 2],
            path: *b"/tmp/attack\0\0\0\0\0",
            program: *b"/bin/hello\0\0\0\0\0\0",
            list: [0; 2],
            descriptors: [-1; 3],
            buffer: [0; 4096],
        };
        let mut things = alloc::boxed::Box::new(things);
        things.vector = [at(&things.buffer), things.buffer.len()];
        things.list = [at(&things.program), 0];
        Ok(things)
    }

    /// Returns arguments with which a call has an effect.
    fn arguments(&self, call: SystemCall, turn: usize) -> [usize; 6] {
        use SystemCall::*;
        let buffer = at(&self.buffer);
        match call {
            Read => [self.zero, buffer, 4096, 0, 0, 0],
            Write => [self.zero, buffer, 4096, 0, 0, 0],
            ReadVector | WriteVector => [self.zero, at(&self.vector), 1, 0, 0, 0],
            Truncate => [self.file, turn % 2 * 65536, 0, 0, 0, 0],
            DuplicateTo => [self.file, 20, 0, 0, 0, 0],
            EpollControl => [self.epoll, turn % 2 + 1, self.counter, buffer, 0, 0],
            EpollWait => [self.epoll, buffer, 8, 0, 0, 0],
            Poll => [buffer, 0, at(&self.no_time), 0, 0, 0],
            Open => [abi_unix::types::AT_FDCWD as usize, at(&self.path), open::RDONLY as usize, 0, 0, 0],
            Futex => [at(&self.word), futex::WAKE as usize, 1, 0, 0, 0],
            Sleep => [at(&self.time), 0, 0, 0, 0, 0],
            SleepOn => [1, 0, at(&self.time), 0, 0, 0],
            Kill => [system::process::number() as usize, 0, 0, 0, 0, 0],
            Socket => [2, SOCK_DGRAM as usize, 0, 0, 0, 0],
            Accept | AcceptWith => [self.listener, 0, 0, 0, 0, 0],
            Connect => [self.datagrams, at(&self.own_address), SocketAddress::SIZE, 0, 0, 0],
            SendTo => [self.datagrams, buffer, 64, 0, at(&self.own_address), SocketAddress::SIZE],
            ReceiveFrom => [self.datagrams, buffer, 4096, message::DONTWAIT as usize, 0, 0],
            GetSocketName | GetPeerName | GetSocketOption | SetSocketOption | Bind | Listen | Shutdown => {
                [self.datagrams, 0, 0, 0, 0, 0]
            }
            Map => {
                let flags = mapping::PRIVATE | mapping::ANONYMOUS;
                [0, 65536, (protection::READ | protection::WRITE) as usize, flags as usize, usize::MAX, 0]
            }
            Wait => [usize::MAX, 0, abi_unix::types::WNOHANG as usize, 0, 0, 0],
            Spawn => [at(&self.program), at(&self.list), at(&self.list[1]), at(&self.descriptors), usize::MAX, 0],
            WorkerWait => [0, 1, 0, 0, 0, 0],
            // An odd entry is refused; a good one would end at once, and with it the process.
            WorkerCreate => [1, 0, 0, 0, 0, 0],
            SetScheduling => [0, scheduling::BUDGET as usize, BUDGET.0 as usize, BUDGET.1 as usize, 0, 0],
            InterruptReceiver => [6, 0, 0, 0, 0, 0],
            InterruptGrant => [self.receiver, 0, 0, 0, 0, 0],
            // The log is shared, and left unchanged.
            Log => [buffer, 0, 0, 0, 0, 0],
            // The way determines the kernel side.
            KernelSide => [usize::MAX, 0, 0, 0, 0, 0],
            _ => {
                let mut arguments = [0; 6];
                for (place, (_, kind)) in arguments.iter_mut().zip(call.arguments()) {
                    *place = match kind {
                        Argument::Number => 0,
                        Argument::Descriptor => self.file,
                        Argument::Input | Argument::Output => buffer,
                        Argument::Path => at(&self.path),
                        Argument::Length => 4096,
                    };
                }
                arguments
            }
        }
    }

    /// Undoes the effect of a call.
    fn undo(&self, call: SystemCall, result: usize) {
        use SystemCall::*;
        match call {
            Open | Duplicate | EventCounter | EpollCreate | Socket | Accept | AcceptWith | InterruptReceiver
            | InterruptGrant => {
                let _ = raw(Close, [result, 0, 0, 0, 0, 0]);
            }
            Pipe => {
                for place in [0, 4] {
                    let bytes = [0, 1, 2, 3].map(|byte| self.read(place + byte));
                    let _ = raw(Close, [u32::from_le_bytes(bytes) as usize, 0, 0, 0, 0, 0]);
                }
            }
            Map => {
                let _ = raw(Unmap, [result, 65536, 0, 0, 0, 0]);
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
}

/// Drops the completions that have come.
fn forget_completions() {
    let Some(ring) = system::start::auxiliary_value(abi_unix::types::auxiliary::COPS_COMPLETION_RING) else { return };
    let word = |offset: usize| {
        // SAFETY: the ring is mapped for ever, and its words are atomic.
        unsafe { &*((ring as usize + offset) as *const AtomicU64) }
    };
    word(completion::HEAD_OFFSET).store(word(completion::TAIL_OFFSET).load(Ordering::Acquire), Ordering::Release);
}

/// Runs as another process: `act victim`, and `act WAY CALL`.
pub async fn act() -> Outcome {
    let word = crate::argument(4)?;
    if word == "victim" {
        loop {
            core::hint::spin_loop();
        }
    }
    let name = crate::argument(5)?;
    let call = SystemCall::ALL.iter().copied().find(|call| call.name() == name);
    let way = WAYS.iter().find(|(other, _)| *other == word);
    let (Some(call), Some((_, way))) = (call, way) else { return Err("no such attack".to_string()) };
    let things = attempt!(Things::make());
    match way {
        Way::WaitingThreads => attempt!(choose(KernelSide::WaitingThreads)),
        Way::RetryingThreads => attempt!(choose(KernelSide::RetryingThreads)),
        Way::PollingThread => attempt!(choose(KernelSide::PollingThread)),
        _ => {}
    }
    match way {
        Way::Ring => through_the_ring(&things, call),
        Way::Asynchronous | Way::PollingThread => asynchronously(&things, call),
        _ => directly(&things, call),
    }
}

fn directly(things: &Things, call: SystemCall) -> Outcome {
    for turn in 0.. {
        if let Ok(result) = raw(call, things.arguments(call, turn)) {
            things.undo(call, result);
        }
    }
    Ok(())
}

/// Reads wait for a byte that is written after them, so that each is carried out in the kernel.
fn asynchronously(things: &Things, call: SystemCall) -> Outcome {
    use SystemCall::*;
    for turn in 0.. {
        let mut arguments = things.arguments(call, turn);
        if matches!(call, Read | ReadVector) {
            arguments[0] = things.reader;
        }
        if call == ReceiveFrom {
            arguments[3] = 0;
        }
        // SAFETY: as in `raw`; the data written by the kernel is not read.
        let result = unsafe { system::raw::syscall_asynchronous(call as usize, arguments, 0, 0, 0) };
        if result != abi_unix::WILL_BE_POSTED
            && let Ok(result) = errno::decode(result)
        {
            things.undo(call, result);
        }
        match call {
            Read | ReadVector => {
                let _ = raw(Write, [things.writer, at(&things.buffer), 1, 0, 0, 0]);
            }
            ReceiveFrom => {
                let _ = raw(SendTo, things.arguments(SendTo, turn));
            }
            _ => {}
        }
        forget_completions();
    }
    Ok(())
}

fn through_the_ring(things: &Things, call: SystemCall) -> Outcome {
    // SAFETY: the call has no pointers.
    attempt!(unsafe { system::call!(InterruptHandler, 0) });
    let address = attempt!(system::worker::ring_setup(ENTRIES, 0));
    let header = address as *const RequestHeader;
    // SAFETY: the kernel has mapped the ring there, and all of it is atomic words.
    let requests = unsafe {
        let entries = core::slice::from_raw_parts((address + request::ENTRIES_OFFSET) as *const _, ENTRIES);
        Requests::new(&*header, entries)
    };
    let mut producer = Producer::new(ENTRIES);
    let word = system::raw::asynchronous_number(call as usize, 0) as u64;
    let mut turn = 0;
    loop {
        for _ in 0..ENTRIES / 4 {
            let arguments = things.arguments(call, turn).map(|argument| argument as u64);
            let entry = Request { call: word, token: 0, arguments };
            if requests.submit(&mut producer, entry, request::urgency(Priority::HIGHEST)).is_err() {
                break;
            }
            turn += 1;
        }
        let _ = system::worker::ring_enter(0, 0);
        forget_completions();
        // New descriptors are closed when the table is full.
        if turn % 512 == 0 {
            for descriptor in 30..1024 {
                let _ = raw(SystemCall::Close, [descriptor, 0, 0, 0, 0, 0]);
            }
        }
    }
}
