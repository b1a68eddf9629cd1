//! A running kernel for the tests of this crate, with programs that are closures.
//!
//! One thread of the test program is hart 0 of a fake machine and runs the whole kernel. A test gives it a closure,
//! which becomes the first worker of a new process: the closure's thread and the hart take turns, so that exactly one
//! of them runs at any time, and a test sees the same order of events each time. While nothing is ready, time jumps to
//! the next deadline. The machine is never switched off; tests have it one after the other.
//!
//! A test fails if a closure panics, if nothing can go on any more, or if the process has left something behind when it
//! and its descendants have ended.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock};
use std::task::Wake;
use std::thread::JoinHandle;

use abi_queue::completion::{ENTRIES_OFFSET, ENTRY_SIZE, ENTRY_WORDS, HEAD_OFFSET, TAIL_OFFSET};
use abi_queue::pages::COMPLETION_RING_OFFSET;
use abi_queue::{Completion, Priority};
use abi_unix::call::{ASYNCHRONOUS, PRIORITY_SHIFT};
use abi_unix::types::{AF_UNIX, MessageHeader, TimeSpec, clone, open, process_control, signal, terminal};
use abi_unix::{Counter, Errno, SystemCall, WILL_BE_POSTED, errno};
use coroutine::Table;
use filesystem::cpio::Writer;
use hal_api::{Machine as _, Trap, UserContext};
use hal_host::Simulation;
use platform::Machine;

use crate::Parts;
use crate::observing::{counters, trace};
use crate::process::accounts::Resource;
use crate::process::exit_status::Ending;
use crate::process::{self, Process, table};
use crate::scheduling::{executor, payers};

#[path = "../tests/common/mod.rs"]
mod common;

pub(crate) use common::{CODE, DATA};

/// Size of a program's memory in bytes, at [`DATA`].
pub(crate) const LENGTH: usize = 0x4_0000;
/// Start of the memory of workers and threads beside the first; and the size of each one's.
const OF_WORKERS: usize = DATA + LENGTH / 2;
const OF_A_WORKER: usize = LENGTH / 2 / 16;
/// Address of a program's handler of user interrupts.
pub(crate) const HANDLER: usize = CODE as usize + 0x800;
/// Address of a program's handler of signals.
pub(crate) const SIGNAL_HANDLER: usize = CODE as usize + 0x900;
/// Path of the one program, which every process runs.
pub(crate) const PATH: &[u8] = b"/bin/test\0";

/// Number of records of the trace, which is on in every test.
const TRACED: &str = "500";
/// Memory of the first process for the tests: that process alone may look at everything.
pub(crate) const OF_THE_FIRST: usize = OF_WORKERS;

/// The register that names the closure of a worker: `tp`.
const IDENTITY: usize = 4;
/// Number of ticks that a step of a program takes.
const STEP: u64 = 10;
/// Number of ticks after which a test counts as stuck.
const PATIENCE: u64 = 100_000_000_000;

/// Program of a worker.
type Body = Box<dyn FnOnce(&mut Program) + Send>;

/// End of a program's turn.
enum Turn {
    /// A call with this number, these arguments, this token and this cid.
    Call { number: usize, arguments: [usize; 6], token: u64, cid: u64 },
    /// Another trap.
    Trap(Trap),
}

/// A closure that has begun.
struct Running {
    go_on: Sender<u64>,
    turns: Receiver<Turn>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct World {
    /// The closures of processes that have not begun, in the order in which they are started.
    fresh: VecDeque<Body>,
    /// The closures of workers and threads that have not begun, by their future identity.
    bodies: HashMap<u64, Body>,
    running: HashMap<u64, Running>,
    last_identity: u64,
    /// The next test.
    test: Option<Body>,
    is_over: bool,
    failures: Vec<String>,
    /// User interrupts that were handled: the process, and the bits that its handler found.
    handled: Vec<(u32, u64)>,
    /// Signals that were handled: the process, and the bytes of the handler's frame.
    signals: Vec<(u32, Vec<u8>)>,
    /// Address of each program's calls, by its identity. The first process keeps its own from test to test.
    calls: HashMap<u64, u64>,
}

type SharedWorld = Arc<Mutex<World>>;

/// Unwinds the thread of a closure whose process is gone.
struct Gone;

fn lock(world: &SharedWorld) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a program has failed").into()
}

/// Waker that counts its wake-ups.
#[derive(Default)]
pub(crate) struct Bell(pub AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Keeps all other tests that change the state of the whole kernel from running meanwhile.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Runs a closure as the program of a process, and fails unless that ends with status 0.
pub(crate) fn run(body: impl FnOnce(&mut Program) + Send + 'static) {
    let ending = run_to_its_end(body);
    assert_eq!(ending, Ending::Exited(0));
}

/// Runs a closure as the program of a process, and returns how that has ended.
pub(crate) fn run_to_its_end(body: impl FnOnce(&mut Program) + Send + 'static) -> Ending {
    type Run = (Body, Sender<Result<Ending, String>>);
    static MACHINE: OnceLock<Sender<Run>> = OnceLock::new();
    let _guard = alone();
    let requests = MACHINE.get_or_init(|| {
        let (sender, requests) = channel::<Run>();
        std::thread::spawn(move || {
            let mut machine = RunningMachine::start();
            for (body, answer) in requests {
                let _ = answer.send(machine.test(body));
            }
        });
        sender
    });
    let (sender, answer) = channel();
    requests.send((Box::new(body), sender)).expect("the machine runs");
    match answer.recv().expect("the kernel does not panic") {
        Ok(ending) => ending,
        Err(failure) => panic!("{failure}"),
    }
}

struct RunningMachine {
    simulation: Simulation,
    world: SharedWorld,
    worker: executor::HartWorker,
    _hart: hal_host::Attached,
}

static SIMULATION: OnceLock<Simulation> = OnceLock::new();

/// Returns the fake machine.
pub(crate) fn simulation() -> &'static Simulation {
    SIMULATION.get_or_init(|| Simulation::with_memory(1))
}

impl RunningMachine {
    fn start() -> RunningMachine {
        memory::fake::init(64 << 20);
        let simulation = simulation().clone();
        let hart = simulation.attach(0);
        let mut archive = Writer::new(0);
        for folder in ["bin", "tmp", "dev"] {
            archive.directory(folder.as_bytes(), 0o755).expect("there is memory");
        }
        archive.file(b"bin/test", 0o755, &executable()).expect("there is memory");
        let initial_files: &'static [u8] = archive.finish().leak();
        let platform = platform::prepare(&common::BOOT).expect("a machine");
        trace::start(Some(TRACED), 1);
        crate::prepare(platform, Parts { scheduler: Table::native(), image: &[0; 4096], initial_files })
            .expect("the kernel starts");
        crate::random::seed_for_tests();
        let world = SharedWorld::default();
        continue_script(&simulation, &world);
        lock(&world).fresh.push_back(Box::new(first));
        executor::spawn_for_kernel(abi_queue::Priority::DEFAULT, async {
            assert_eq!(crate::begin("", "/bin/test", vec![b"/bin/test".to_vec()]).await, Ok(()));
        });
        let worker = executor::HartWorker::of_this_hart();
        let mut machine = RunningMachine { simulation, world, worker, _hart: hart };
        while machine.run_one() {}
        machine
    }

    /// Does one step of the kernel; returns `false` if there is nothing to do.
    fn run_one(&mut self) -> bool {
        let _ = crate::machine::on_interrupt();
        usermode::release_retired();
        if self.worker.run_one() {
            return true;
        }
        let has_freed = crate::files::remains::free_any();
        if has_freed {
            payers::skip();
        }
        has_freed
    }

    fn test(&mut self, body: Body) -> Result<Ending, String> {
        let start = Machine::now();
        {
            let mut world = lock(&self.world);
            world.test = Some(body);
            world.is_over = false;
        }
        let first = table::find(process::FIRST).expect("the first process never ends");
        // A test before may have left another one, and with a short one it takes long to become stuck.
        crate::scheduling::set_bound_ns(crate::scheduling::DEFAULT_BOUND_NS);
        // Its tables of pages are charged at a tick, which a test need not have.
        first.charge_tables();
        let usage = || Resource::ALL.map(|resource| first.account.used(resource));
        let before = usage();
        let mut status = Vec::new();
        first.worker(0).expect("it has one").wake();
        let mut is_stuck = false;
        loop {
            if self.run_one() {
                continue;
            }
            if lock(&self.world).is_over {
                break;
            }
            if !is_stuck && (Machine::now() - start > PATIENCE || self.simulation.deadline(0).is_none()) {
                is_stuck = true;
                let mut id = process::FIRST;
                while let Some(process) = table::next_after(id) {
                    id = process.id;
                    process.end(Ending::Killed(9));
                }
                continue;
            }
            crate::sleep();
        }
        let after = usage();
        let mut world = lock(&self.world);
        let ended: Vec<_> = world.running.extract_if(|&identity, _| identity != 1).collect();
        let failures = std::mem::take(&mut world.failures);
        world.fresh.clear();
        world.bodies.clear();
        world.handled.clear();
        world.signals.clear();
        drop(world);
        for (_, Running { go_on, turns, thread }) in ended {
            drop((go_on, turns));
            let _ = thread.join();
        }
        status.extend(failures);
        if is_stuck {
            status.push("nothing goes on any more".into());
        }
        if status.is_empty() && before != after {
            status.push(format!("the first process used {before:?} before and {after:?} after the test"));
        }
        if status.is_empty() { Ok(self.ending()) } else { Err(status.join("\n")) }
    }

    fn ending(&self) -> Ending {
        LAST_ENDING.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).expect("the test has ended")
    }
}

/// End of the last test's process.
static LAST_ENDING: Mutex<Option<Ending>> = Mutex::new(None);

/// Runs the first process: starts the process of each test, and waits for all of its descendants.
fn first(program: &mut Program) {
    // Sleeps of the tests end when they say, to the nanosecond.
    let set_slack = process_control::SET_TIMERSLACK as usize;
    program.call(SystemCall::ProcessControl, [set_slack, 1]).expect("slack can be set");
    loop {
        let test = loop {
            if let Some(test) = lock(&program.world).test.take() {
                break test;
            }
            let seen = program.process().posted() as usize;
            let _ = program.call(SystemCall::WorkerWait, [seen, usize::MAX]);
        };
        let id = program.spawn_given(0, usize::MAX, test).expect("there is room for a process");
        let status = program.place(8);
        loop {
            match program.call(SystemCall::Wait, [usize::MAX, status, 0, 0]) {
                Ok(child) if child == id => {
                    let status = program.read_u32(status);
                    let ending = match status & 0x7f {
                        0 => Ending::Exited((status >> 8) as u8),
                        signal => Ending::Killed(signal as u8),
                    };
                    *LAST_ENDING.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(ending);
                }
                Ok(_) => {}
                Err(error) => break assert_eq!(error, Errno::ECHILD),
            }
        }
        // Orphans are not waited for.
        while counters::read(Counter::Processes) > 1 {
            program.sleep_ns(1_000_000);
        }
        program.room.start = DATA + 64;
        lock(&program.world).is_over = true;
    }
}

/// Adds the next visit to user mode to the script, which adds the one after it.
fn continue_script(simulation: &Simulation, world: &SharedWorld) {
    let (again, shared) = (simulation.clone(), world.clone());
    simulation.script(move |context| {
        continue_script(&again, &shared);
        again.advance(STEP);
        step(&shared, context)
    });
}

/// Runs one turn of the program with these registers.
fn step(shared: &SharedWorld, context: &mut UserContext) -> Trap {
    let id = executor::visited_process(Machine::hart());
    if context.pc == HANDLER as u64 {
        return handle_interrupt(shared, id, context);
    }
    let mut world = lock(shared);
    if context.pc == SIGNAL_HANDLER as u64 {
        let frame = read(id, context.stack() as usize, ::signals::frame::SIZE);
        assert_eq!(u64::from(frame[0]), context.register(10), "the signal's number");
        world.signals.push((id, frame));
        context.set_register(17, SystemCall::SignalReturn as u64);
        return Trap::SystemCall;
    }
    let mut identity = context.register(IDENTITY);
    if identity != 0 && world.calls.get(&identity) == Some(&context.pc) {
        // The call is made again.
        context.pc += 4;
        return Trap::SystemCall;
    }
    let mut body = None;
    if identity == 0 {
        world.last_identity += 1;
        identity = world.last_identity;
        context.set_register(IDENTITY, identity);
        let missing: Body = Box::new(|_| panic!("a process has begun for which there is no closure"));
        body = Some((world.fresh.pop_front().unwrap_or(missing), SystemCall::ExitGroup, DATA + 64..OF_WORKERS));
    } else if let Some(found) = world.bodies.remove(&identity) {
        let begin = OF_WORKERS + identity as usize % 16 * OF_A_WORKER;
        body = Some((found, SystemCall::Exit, begin..begin + OF_A_WORKER));
    }
    if let Some((body, exit, room)) = body {
        let running = begin(shared, body, id, exit, room, context);
        world.running.insert(identity, running);
    }
    // Not under the lock: the closure uses the world.
    let Running { go_on, turns, thread } = world.running.remove(&identity).expect("its closure has begun");
    drop(world);
    let turn = go_on.send(context.register(10)).ok().and_then(|()| turns.recv().ok());
    lock(shared).running.insert(identity, Running { go_on, turns, thread });
    let exit = Turn::Call { number: SystemCall::ExitGroup as usize, arguments: [1; 6], token: 0, cid: 0 };
    match turn.unwrap_or(exit) {
        Turn::Trap(trap) => trap,
        Turn::Call { number, arguments, token, cid } => {
            // All calls of a program are made at one address.
            context.pc = *lock(shared).calls.entry(identity).or_insert(context.pc) + 4;
            context.set_register(17, number as u64);
            context.set_register(16, cid);
            context.set_register(5, token);
            for (index, argument) in arguments.into_iter().enumerate() {
                context.set_register(10 + index, argument as u64);
            }
            Trap::SystemCall
        }
    }
}

/// Reads the memory of a process.
fn read(id: u32, address: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    table::find(id).expect("a process that runs").copy_in(address, &mut bytes).expect("its memory");
    bytes
}

/// Runs a handler that records its interrupts and returns.
fn handle_interrupt(shared: &SharedWorld, id: u32, context: &mut UserContext) -> Trap {
    let process = table::find(id).expect("a process that runs");
    lock(shared).handled.push((id, process.shared.take_interrupts(0)));
    context.set_register(17, SystemCall::InterruptReturn as u64);
    Trap::SystemCall
}

/// Starts the thread of a closure, which waits for its first turn.
fn begin(
    world: &SharedWorld,
    body: Body,
    id: u32,
    exit: SystemCall,
    room: Range<usize>,
    context: &UserContext,
) -> Running {
    say_where_programs_panic();
    let (go_on, turns_to_come) = channel();
    let (sender, turns) = channel();
    let world = world.clone();
    let (stack, pc) = (context.stack() as usize, context.pc as usize);
    let thread = std::thread::spawn(move || {
        let _hart = simulation().attach(0);
        let mut program = Program { id, world, turns: sender, go_on: turns_to_come, room, given: 0, stack, pc };
        let Ok(given) = program.go_on.recv() else { return };
        program.given = given as usize;
        let result = catch_unwind(AssertUnwindSafe(|| body(&mut program)));
        let (call, status) = match result {
            Ok(()) => (exit, 0),
            Err(payload) if payload.is::<Gone>() => return,
            Err(payload) => {
                let place = PANICKED_AT.with_borrow(Clone::clone);
                lock(&program.world).failures.push(format!("{} ({place})", message(&*payload)));
                (SystemCall::ExitGroup, 1)
            }
        };
        let _ = catch_unwind(AssertUnwindSafe(|| program.call(call, [status])));
    });
    Running { go_on, turns, thread }
}

std::thread_local! {
    static PANICKED_AT: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
}

/// Makes panics record their place, for the message of the test's thread.
fn say_where_programs_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |information| {
            let place = information.location().map(ToString::to_string).unwrap_or_default();
            PANICKED_AT.with_borrow_mut(|kept| *kept = place);
            usual(information);
        }));
    });
}

/// A program, as its closure sees it.
pub(crate) struct Program {
    /// The number of its process.
    pub id: u32,
    world: SharedWorld,
    turns: Sender<Turn>,
    go_on: Receiver<u64>,
    /// The free part of its memory.
    room: Range<usize>,
    /// Value of `a0` when it begins.
    pub given: usize,
    /// Its stack pointer when it begins.
    pub stack: usize,
    /// Address of its first instruction.
    pub pc: usize,
}

/// Returns the file of the one program.
pub(crate) fn executable() -> Vec<u8> {
    common::program(PATH, LENGTH)
}

impl Program {
    fn turn(&mut self, turn: Turn) -> usize {
        let answer = self.turns.send(turn).ok().and_then(|()| self.go_on.recv().ok());
        answer.unwrap_or_else(|| resume_unwind(Box::new(Gone))) as usize
    }

    /// Makes a call and waits for its result.
    pub(crate) fn call<const N: usize>(&mut self, call: SystemCall, given: [usize; N]) -> Result<usize, Errno> {
        self.call_number(call as usize, given)
    }

    /// Makes a call by any number.
    pub(crate) fn call_number<const N: usize>(&mut self, number: usize, given: [usize; N]) -> Result<usize, Errno> {
        let mut arguments = [0; 6];
        arguments[..N].copy_from_slice(&given);
        errno::decode(self.turn(Turn::Call { number, arguments, token: 0, cid: 0 }))
    }

    /// Makes an asynchronous call; `None` if its result will be posted.
    pub(crate) fn submit<const N: usize>(
        &mut self,
        call: SystemCall,
        given: [usize; N],
        token: u64,
    ) -> Option<Result<usize, Errno>> {
        self.submit_at(Priority::DEFAULT, call, given, token)
    }

    /// Makes an asynchronous call of this priority; `None` if its result will be posted.
    pub(crate) fn submit_at<const N: usize>(
        &mut self,
        priority: Priority,
        call: SystemCall,
        given: [usize; N],
        token: u64,
    ) -> Option<Result<usize, Errno>> {
        let mut arguments = [0; 6];
        arguments[..N].copy_from_slice(&given);
        let number = call as usize | ASYNCHRONOUS | usize::from(priority.number()) << PRIORITY_SHIFT;
        match self.turn(Turn::Call { number, arguments, token, cid: token + 1000 }) {
            WILL_BE_POSTED => None,
            result => Some(errno::decode(result)),
        }
    }

    /// Traps for another reason than a call.
    pub(crate) fn trap(&mut self, trap: Trap) {
        self.turn(Turn::Trap(trap));
    }

    /// Touches the pages of a range, as instructions of the program do.
    pub(crate) fn touch(&mut self, address: usize, length: usize, access: hal_api::Access) {
        for page in (address..address + length).step_by(abi_queue::pages::PAGE_SIZE) {
            self.trap(Trap::PageFault { address: page as u64, access });
        }
    }

    /// Returns its process.
    pub(crate) fn process(&self) -> Arc<Process> {
        table::find(self.id).expect("it lives")
    }

    /// Takes a place for so many bytes in its memory.
    pub(crate) fn place(&mut self, length: usize) -> usize {
        let place = self.room.start;
        self.room.start = (place + length).next_multiple_of(8);
        assert!(self.room.start <= self.room.end, "a program has that much memory only");
        place
    }

    /// Puts bytes into its memory; returns their address.
    pub(crate) fn store(&mut self, bytes: &[u8]) -> usize {
        let place = self.place(bytes.len());
        self.write(place, bytes);
        place
    }

    /// Writes its memory.
    pub(crate) fn write(&self, address: usize, bytes: &[u8]) {
        self.process().copy_out(address, bytes).expect("its memory");
    }

    /// Reads its memory.
    pub(crate) fn read(&self, address: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.process().copy_in(address, &mut bytes).expect("its memory");
        bytes
    }

    /// Reads a word of its memory.
    pub(crate) fn read_u32(&self, address: usize) -> u32 {
        u32::from_le_bytes(self.read(address, 4).try_into().expect("4 bytes"))
    }

    /// Reads a word of its memory.
    pub(crate) fn read_u64(&self, address: usize) -> u64 {
        u64::from_le_bytes(self.read(address, 8).try_into().expect("8 bytes"))
    }

    /// Opens a file that is made if there is none; returns its descriptor.
    pub(crate) fn create(&mut self, path: &[u8], flags: u32) -> usize {
        let path = self.store(path);
        self.call(SystemCall::Open, [0, path, (flags | open::CREAT) as usize, 0o644]).unwrap()
    }

    /// Removes a name.
    pub(crate) fn remove(&mut self, path: &[u8]) {
        let path = self.store(path);
        self.call(SystemCall::Unlink, [0, path, 0]).unwrap();
    }

    /// Makes a pipe; returns the descriptors of its reading and its writing end.
    pub(crate) fn pipe(&mut self, flags: u32) -> (usize, usize) {
        let ends = self.place(8);
        assert_eq!(self.call(SystemCall::Pipe, [ends, flags as usize]), Ok(0));
        (self.read_u32(ends) as usize, self.read_u32(ends + 4) as usize)
    }

    /// Opens the master of a pseudo-terminal, and unlocks its slave; returns the descriptor and the slave's number.
    pub(crate) fn open_master(&mut self) -> (usize, u32) {
        let path = self.store(b"/dev/ptmx\0");
        let flags = (open::RDWR | open::NOCTTY) as usize;
        let master = self.call(SystemCall::Open, [0, path, flags, 0]).unwrap();
        let place = self.store(&[0; 8]);
        for request in [terminal::SET_LOCK, terminal::GET_PSEUDO_NUMBER] {
            assert_eq!(self.call(SystemCall::DeviceControl, [master, request as usize, place]), Ok(0));
        }
        (master, self.read_u32(place))
    }

    /// Makes a pair of local sockets of this kind; returns their descriptors.
    pub(crate) fn socket_pair(&mut self, kind: u32) -> (usize, usize) {
        let ends = self.place(8);
        assert_eq!(self.call(SystemCall::SocketPair, [AF_UNIX as usize, kind as usize, 0, ends]), Ok(0));
        (self.read_u32(ends) as usize, self.read_u32(ends + 4) as usize)
    }

    /// Stores the header of a message with these buffers and these control messages; returns its address.
    pub(crate) fn message_header(&mut self, buffers: &[(usize, usize)], control: (usize, usize)) -> usize {
        let list: Vec<u8> = buffers.iter().flat_map(|part| [part.0, part.1].map(usize::to_le_bytes).concat()).collect();
        let list = self.store(&list);
        let header = MessageHeader {
            buffers: list as u64,
            count: buffers.len() as u64,
            control: control.0 as u64,
            control_length: control.1 as u64,
            ..MessageHeader::default()
        };
        self.store(&header.to_bytes())
    }

    /// Reads up to so many bytes from a descriptor.
    pub(crate) fn read_from(&mut self, descriptor: usize, length: usize) -> Result<Vec<u8>, Errno> {
        let begin = self.room.start;
        let place = self.place(length);
        let result = self.call(SystemCall::Read, [descriptor, place, length]);
        self.room.start = begin;
        result.map(|count| self.read(place, count))
    }

    /// Writes bytes to a descriptor.
    pub(crate) fn write_to(&mut self, descriptor: usize, bytes: &[u8]) -> Result<usize, Errno> {
        let begin = self.room.start;
        let place = self.store(bytes);
        self.room.start = begin;
        self.call(SystemCall::Write, [descriptor, place, bytes.len()])
    }

    /// Closes a descriptor.
    pub(crate) fn close(&mut self, descriptor: usize) -> Result<usize, Errno> {
        self.call(SystemCall::Close, [descriptor])
    }

    /// Starts a process that runs a closure and has its descriptors 0, 1 and 2; returns its number.
    pub(crate) fn spawn(&mut self, body: impl FnOnce(&mut Program) + Send + 'static) -> Result<usize, Errno> {
        self.spawn_given(0, usize::MAX, body)
    }

    /// Starts a copy of the process, in which this body runs.
    pub(crate) fn fork(&mut self, body: impl FnOnce(&mut Program) + Send + 'static) -> Result<usize, Errno> {
        let identity = self.identity_for(body);
        let flags = clone::SETTLS as usize | signal::CHLD as usize;
        self.call(SystemCall::Clone, [flags, 0, 0, identity, 0])
    }

    /// Starts a process with these descriptors, an address or 0, and this priority.
    pub(crate) fn spawn_given(
        &mut self,
        descriptors: usize,
        priority: usize,
        body: impl FnOnce(&mut Program) + Send + 'static,
    ) -> Result<usize, Errno> {
        let begin = self.room.start;
        let path = self.store(PATH);
        self.room.start = begin;
        self.spawn_as([path, 0, 0, descriptors, priority], Box::new(body))
    }

    /// Starts a process with this path, these arguments and this environment, which are addresses.
    pub(crate) fn spawn_with(
        &mut self,
        path: usize,
        arguments: usize,
        environment: usize,
        body: impl FnOnce(&mut Program) + Send + 'static,
    ) -> Result<usize, Errno> {
        self.spawn_as([path, arguments, environment, 0, usize::MAX], Box::new(body))
    }

    fn spawn_as(&mut self, arguments: [usize; 5], body: Body) -> Result<usize, Errno> {
        lock(&self.world).fresh.push_back(body);
        let result = self.call(SystemCall::Spawn, arguments);
        if result.is_err() {
            lock(&self.world).fresh.pop_back();
        }
        result
    }

    /// Makes this closure the program that this process is about to execute.
    pub(crate) fn goes_on_as(&mut self, body: impl FnOnce(&mut Program) + Send + 'static) {
        lock(&self.world).fresh.push_back(Box::new(body));
    }

    /// Makes an identity for a worker or thread that runs a closure.
    pub(crate) fn identity_for(&mut self, body: impl FnOnce(&mut Program) + Send + 'static) -> usize {
        let mut world = lock(&self.world);
        world.last_identity += 1;
        let identity = world.last_identity;
        world.bodies.insert(identity, Box::new(body));
        identity as usize
    }

    /// Adds a worker that runs a closure; returns its index.
    pub(crate) fn add_worker(&mut self, body: impl FnOnce(&mut Program) + Send + 'static) -> Result<usize, Errno> {
        let identity = self.identity_for(body);
        self.call(SystemCall::WorkerCreate, [CODE as usize, DATA + LENGTH, 0, identity])
    }

    /// Waits for a child; returns its number and status.
    pub(crate) fn wait_for(&mut self, child: usize) -> Result<(usize, u32), Errno> {
        let status = self.place(8);
        let child = self.call(SystemCall::Wait, [child, status, 0, 0])?;
        Ok((child, self.read_u32(status)))
    }

    /// Sleeps for so long, even if completions are posted meanwhile.
    pub(crate) fn sleep_ns(&mut self, ns: usize) {
        let begin = self.room.start;
        let time = self.store(&TimeSpec::from_ns(ns as u64).to_bytes());
        self.room.start = begin;
        assert_eq!(self.call(SystemCall::Sleep, [time, 0]), Ok(0));
    }

    /// Takes the completions from its ring, in their order.
    pub(crate) fn completions(&mut self) -> Vec<Completion> {
        let ring = self.process().shared.address(COMPLETION_RING_OFFSET);
        let (tail, head) = (self.read_u64(ring + TAIL_OFFSET), self.read_u64(ring + HEAD_OFFSET));
        let capacity = self.read_u64(ring + abi_queue::completion::CAPACITY_OFFSET);
        let taken = (head..tail)
            .map(|index| {
                let entry = self.read(ring + ENTRIES_OFFSET + (index % capacity) as usize * ENTRY_SIZE, ENTRY_SIZE);
                let (words, _) = entry.as_chunks::<8>();
                let words: [u64; ENTRY_WORDS] = core::array::from_fn(|index| u64::from_le_bytes(words[index]));
                Completion::from_words(words)
            })
            .collect();
        self.write(ring + HEAD_OFFSET, &tail.to_le_bytes());
        taken
    }

    /// Waits until there is a completion, and takes all; returns tokens and results.
    pub(crate) fn await_completions(&mut self) -> Vec<(u64, Result<usize, Errno>)> {
        loop {
            let taken = self.completions();
            if !taken.is_empty() {
                return taken.iter().map(|taken| (taken.token, errno::decode(taken.result as usize))).collect();
            }
            let seen = self.process().posted() as usize;
            let _ = self.call(SystemCall::WorkerWait, [seen, usize::MAX]);
        }
    }

    /// Returns the frames of the signals that its handler has handled.
    pub(crate) fn signals(&self) -> Vec<Vec<u8>> {
        let world = lock(&self.world);
        world.signals.iter().filter(|(id, _)| *id == self.id).map(|(_, frame)| frame.clone()).collect()
    }

    /// Returns the bits of the user interrupts that its process's handler has taken, in their order.
    pub(crate) fn handled(&self) -> Vec<u64> {
        lock(&self.world).handled.iter().filter(|(id, _)| *id == self.id).map(|&(_, bits)| bits).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_make_calls_and_start_others() {
        run(|program| {
            assert_eq!(program.call(SystemCall::GetProcess, []), Ok(program.id as usize));
            assert_eq!(program.call_number(0xfff, []), Err(Errno::ENOSYS));
            let parent = program.id as usize;
            let child = program.spawn(move |program| {
                assert_eq!(program.call(SystemCall::GetParent, []), Ok(parent));
                let _ = program.call(SystemCall::ExitGroup, [7]);
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 7 << 8)));
        });
        let ending = run_to_its_end(|program| {
            let _ = program.call(SystemCall::ExitGroup, [3]);
        });
        assert_eq!(ending, Ending::Exited(3));
    }

    #[test]
    #[should_panic(expected = "nothing goes on any more")]
    fn a_program_that_waits_for_ever_fails_its_test() {
        run(|program| {
            let word = program.store(&[0; 8]);
            let _ = program.call(SystemCall::Futex, [word, 0, 0, 0]);
        });
    }

    #[test]
    #[should_panic(expected = "this is what it says")]
    fn a_panic_of_a_program_fails_its_test() {
        run(|program| {
            program.spawn(|_| panic!("this is what it says")).unwrap();
        });
    }
}
