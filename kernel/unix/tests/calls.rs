//! The whole kernel on the fake machine, with programs that make random calls: sequences that several processes and
//! threads make beside each other, with the descriptors, mappings and processes that earlier calls have made.
//!
//! `apps/fuzz` does the same on the machine; the test takes a fraction of the time and has the checks of a debug build.
//! User mode is a script: each visit changes the registers as a program would that makes one more call. The program's
//! instructions are not executed, so that its memory may have any contents.

mod common;

use std::sync::{Arc, Mutex};

use abi_unix::call::{ASYNCHRONOUS, Argument, PRIORITY_SHIFT, Waiting};
use abi_unix::types::{SocketAddress, TimeSpec, WNOHANG, mounting, signal};
use abi_unix::{Counter, Errno, SystemCall, errno};
use coroutine::Table;
use filesystem::cpio::Writer;
use hal_api::{Access, Status, Trap, UserContext};
use hal_host::Simulation;
use kernel_unix::Parts;

use crate::common::{BOOT, CODE, DATA};

/// Address of the program's memory for arguments.
const INPUT: usize = DATA;
const OUTPUT: usize = 0x2_8000;
const AREA: usize = 0x8000;
/// Distance of the items in the input area.
const STEP: usize = 256;
/// First items there: the program's path, its arguments, and the descriptors of a child.
const ARGUMENTS: usize = INPUT + 64;
const DESCRIPTORS: usize = INPUT + 128;

/// Returns the memory that random calls read.
fn input() -> Vec<u8> {
    let paths = ["/tmp/a", "/tmp/b", "/tmp/d", "/tmp/d/x", "/dev/zero", "/dev/null", "/bin", "", "."];
    let mut area = vec![0; AREA];
    for (index, place) in area.chunks_exact_mut(STEP).enumerate().skip(1) {
        let port = 1000 + (index % 3) as u16;
        match index % 4 {
            0 => {
                place[..paths[index / 4 % paths.len()].len()].copy_from_slice(paths[index / 4 % paths.len()].as_bytes())
            }
            1 => place[..16].copy_from_slice(&SocketAddress { address: [127, 0, 0, 1], port }.to_bytes()),
            2 => place[..16].copy_from_slice(&TimeSpec::from_ns([0, 1, 1000, 1_000_000][index / 4 % 4]).to_bytes()),
            _ => place.fill(0xff),
        }
    }
    area[..10].copy_from_slice(b"/bin/hello");
    area[ARGUMENTS - INPUT..][..8].copy_from_slice(&INPUT.to_le_bytes());
    area[DESCRIPTORS - INPUT..][..12].fill(0xff);
    area
}

/// A generator of numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) as usize
    }

    fn below(&mut self, limit: usize) -> usize {
        self.next() % limit
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn bad_address(&mut self) -> usize {
        self.of(&[
            0,
            1,
            0xfff,
            CODE as usize,
            OUTPUT + AREA - 3,
            0x3f_ffff_f000,
            0x40_0000_0000,
            usize::MAX - 7,
            0xffff_ffc0_8020_0000,
        ])
    }

    fn argument(&mut self, kind: Argument) -> usize {
        match kind {
            Argument::Number => match self.below(4) {
                0 => self.next(),
                1 => self.of(&[usize::MAX, 1 << 31, 1 << 32, 0o4000, 0o2000000, 0o100, 0o200000]),
                2 => 1 << self.below(64),
                _ => self.below(16),
            },
            Argument::Descriptor if self.one_in(8) => self.of(&[usize::MAX, -100i64 as usize, 1 << 31, 1023, 1024]),
            Argument::Descriptor => self.below(24),
            Argument::Input | Argument::Path | Argument::Output if self.one_in(8) => self.bad_address(),
            Argument::Input => INPUT + self.below(AREA / STEP) * STEP,
            Argument::Path => INPUT + self.below(AREA / STEP / 4) * 4 * STEP,
            Argument::Output => OUTPUT + self.below(AREA / STEP) * STEP,
            Argument::Length => match self.below(8) {
                0 => self.of(&[usize::MAX, usize::MAX >> 1, 1 << 40, 1 << 32, 1 << 31]),
                1 => 0,
                2 => self.below(8192),
                _ => self.below(64),
            },
        }
    }
}

/// Register in which a program keeps its identity: `s1`; it begins with it in `tp`.
const MARK: usize = 9;
const THREAD_POINTER: usize = 4;
/// Register in which a program keeps whether its last call was `wait4`: `s2`.
const HAS_WAITED: usize = 18;
/// Identity of the first process.
const FIRST: u64 = 1;
/// Identity of every other process.
const OTHER: u64 = 2;

/// Steps of the first process when all have made enough calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    EndOthers,
    WaitForOthers,
    Cancel(u64),
    Close(usize),
    Settle(usize),
    End,
}

/// Number of calls with which the first process begins: each starts another process.
const FIRST_SPAWNS: u64 = 4;

struct World {
    random: Random,
    left: u32,
    is_begun: bool,
    closing: Closing,
    /// Number of calls that were done in place, and of those among them without an error.
    made: u64,
    succeeded: u64,
    /// Number of processes beside the first, and of their workers.
    others: u64,
    /// Number of threads that were requested.
    threads: u32,
}

/// Greatest number of threads that are requested in one run.
const MOST_THREADS: u32 = 200;

/// Number of tokens of calls in flight.
const TOKENS: u64 = 64;
/// Number of descriptors that are closed in the end: more than there can be.
const MOST_DESCRIPTORS: usize = 1100;
/// Time that the first process sleeps, in nanoseconds: longer than some dozens of its threads need for a call each, so
/// that less important processes have their turn.
const NAP_NS: usize = 1_000_000_000;
/// Greatest number of looks at whether others are gone.
const MOST_ROUNDS: usize = 10_000;

impl World {
    /// Chooses the next trap of the program with these registers.
    fn go_on(&mut self, context: &mut UserContext) -> Trap {
        if context.register(MARK) == 0 {
            let is_first = !self.is_begun || context.register(THREAD_POINTER) == FIRST;
            let mark = if is_first { FIRST } else { OTHER };
            self.is_begun = true;
            // Threads begin with the registers of their creator, workers with a thread pointer.
            context.set_register(MARK, mark);
            self.others += u64::from(mark == OTHER);
        } else {
            self.made += 1;
            self.succeeded += u64::from(errno::decode(context.register(10) as usize).is_ok());
        }
        let is_first = context.register(MARK) == FIRST;
        let Some(left) = self.left.checked_sub(1) else {
            let (call, arguments) = if is_first { self.close(context) } else { (SystemCall::ExitGroup, [0; 6]) };
            return ask(context, call as usize, arguments);
        };
        self.left = left;
        if !is_first && self.random.one_in(200) {
            let access = self.random.of(&[Access::Read, Access::Write, Access::Execute]);
            let address =
                if self.random.one_in(2) { self.random.bad_address() } else { INPUT + self.random.below(AREA) };
            return self.random.of(&[
                Trap::PageFault { address: address as u64, access },
                Trap::IllegalInstruction { bits: 0 },
                Trap::Breakpoint,
            ]);
        }
        let (call, arguments) = self.call(is_first);
        let mut number = call as usize;
        if call.waiting() == Waiting::Possible && call != SystemCall::WorkerWait || self.random.one_in(8) {
            number |= ASYNCHRONOUS | self.random.below(64) << PRIORITY_SHIFT;
        }
        context.set_register(5, self.random.next() as u64 % TOKENS);
        context.set_register(16, 0);
        ask(context, number, arguments)
    }

    fn call(&mut self, is_first: bool) -> (SystemCall, [usize; 6]) {
        if is_first && self.made < FIRST_SPAWNS {
            // Others are there from the beginning, and more important.
            return (SystemCall::Spawn, [INPUT, ARGUMENTS, 0, DESCRIPTORS, self.made as usize, 0]);
        }
        loop {
            let call = match self.random.below(40) {
                0 => SystemCall::Spawn,
                1 => SystemCall::Clone,
                2 => SystemCall::Wait,
                _ => self.random.of(SystemCall::ALL),
            };
            let mut arguments = [0; 6];
            for (argument, (_, kind)) in arguments.iter_mut().zip(call.arguments()) {
                *argument = self.random.argument(*kind);
            }
            match call {
                // They would end the first process, or change stacks by assembly, which is not the host's.
                SystemCall::Exit | SystemCall::ExitGroup | SystemCall::Execute if is_first => continue,
                // A handler without a stack ends its process.
                SystemCall::InterruptHandler if is_first => continue,
                // Handlers, frames and waits without end are for the others.
                SystemCall::SignalAction
                | SystemCall::SignalReturn
                | SystemCall::SignalSuspend
                | SystemCall::SignalWait
                    if is_first =>
                {
                    continue;
                }
                SystemCall::KernelSide => continue,
                SystemCall::Execute if self.random.one_in(2) => arguments[..3].copy_from_slice(&[INPUT, ARGUMENTS, 0]),
                SystemCall::Spawn if !self.random.one_in(8) => {
                    let descriptors = if self.random.one_in(2) { DESCRIPTORS } else { arguments[3] };
                    arguments = [INPUT, ARGUMENTS, 0, descriptors, self.random.below(64), 0];
                }
                // Thousands of threads would make each call wait for its turn.
                SystemCall::Clone if self.threads == MOST_THREADS => continue,
                SystemCall::Clone if !self.random.one_in(8) => {
                    self.threads += 1;
                    arguments = [0x5_0f00, OUTPUT + AREA, OUTPUT, OUTPUT, OUTPUT + 8, 0];
                }
                // A copy of the first process would be taken for it: CLONE_THREAD.
                SystemCall::Clone if is_first => arguments[0] |= 0x1_0000,
                SystemCall::WorkerCreate => {
                    arguments[3] = if is_first { FIRST as usize } else { OTHER as usize };
                    arguments[0] = CODE as usize;
                }
                SystemCall::WorkerWait => arguments[1] = self.random.below(100_000),
                // The first process is not ended, nor kept from starting others.
                SystemCall::Kill | SystemCall::ProcessLimit if is_first => arguments[0] = 2 + self.random.below(20),
                SystemCall::KillThread
                | SystemCall::KillThreadOf
                | SystemCall::SignalQueue
                | SystemCall::SignalQueueThread => {
                    let target = 2 + self.random.below(20);
                    arguments[0] = target;
                    if matches!(call, SystemCall::KillThreadOf | SystemCall::SignalQueueThread) {
                        arguments[1] = target;
                    }
                }
                SystemCall::Kill => arguments[0] = self.random.below(20),
                SystemCall::Reboot => arguments[0] = 0,
                // The files of the others stay writable.
                SystemCall::Mount => arguments[3] &= !(mounting::flag::REMOUNT as usize),
                // The machine's memory is the test's: files must not become arbitrarily long.
                SystemCall::Truncate | SystemCall::TruncateAt | SystemCall::Seek => {
                    arguments[1] = self.random.of(&[0, 100, 65536, 1 << 62, usize::MAX]);
                }
                // The first process goes on with its memory and its program.
                SystemCall::AdviseMemory if is_first => continue,
                SystemCall::ChangeMode => arguments[1] |= 0o755,
                SystemCall::ChangeModeAt | SystemCall::ChangeModeWith => arguments[2] |= 0o755,
                SystemCall::WriteAt => arguments[3] = self.random.of(&[0, 100, 65536, 1 << 62, usize::MAX]),
                SystemCall::Cancel => arguments[0] = self.random.below(TOKENS as usize),
                _ => {}
            }
            return (call, arguments);
        }
    }

    /// Chooses the last calls of the first process: it ends all others, gives up everything that it has, and sleeps.
    fn close(&mut self, context: &mut UserContext) -> (SystemCall, [usize; 6]) {
        let has_waited = context.register(HAS_WAITED) != 0;
        let answer = errno::decode(context.register(10) as usize);
        if self.closing == Closing::WaitForOthers && has_waited && answer == Err(Errno::ECHILD) {
            self.closing = Closing::Cancel(0);
        }
        context.set_register(HAS_WAITED, 0);
        match self.closing {
            Closing::EndOthers => {
                self.closing = Closing::WaitForOthers;
                (SystemCall::Kill, [usize::MAX, signal::KILL as usize, 0, 0, 0, 0])
            }
            Closing::WaitForOthers if self.random.one_in(2) => sleep(NAP_NS),
            Closing::WaitForOthers => {
                context.set_register(HAS_WAITED, 1);
                (SystemCall::Wait, [usize::MAX, 0, WNOHANG as usize, 0, 0, 0])
            }
            Closing::Cancel(token) => {
                let next = token + 1;
                self.closing = if next < TOKENS { Closing::Cancel(next) } else { Closing::Close(0) };
                (SystemCall::Cancel, [token as usize, 0, 0, 0, 0, 0])
            }
            Closing::Close(descriptor) => {
                let next = descriptor + 1;
                self.closing = if next < MOST_DESCRIPTORS { Closing::Close(next) } else { Closing::Settle(0) };
                (SystemCall::Close, [descriptor, 0, 0, 0, 0, 0])
            }
            // A process may be taken apart still, or have been started by a call that was in flight.
            Closing::Settle(rounds) if kernel_unix::read_counter(Counter::Processes) > 1 => {
                assert!(rounds < MOST_ROUNDS, "there are processes that the first one cannot wait for");
                self.closing = Closing::Settle(rounds + 1);
                match rounds % 3 {
                    0 => (SystemCall::Wait, [usize::MAX, 0, WNOHANG as usize, 0, 0, 0]),
                    1 => (SystemCall::Kill, [usize::MAX, signal::KILL as usize, 0, 0, 0, 0]),
                    _ => sleep(NAP_NS),
                }
            }
            Closing::Settle(_) | Closing::End => {
                self.closing = Closing::End;
                sleep(NAP_NS)
            }
        }
    }
}

/// Returns a sleep of the first process, which has seen all posted completions.
fn sleep(duration_ns: usize) -> (SystemCall, [usize; 6]) {
    let posted = kernel_unix::posted_to_the_first();
    (SystemCall::WorkerWait, [posted as usize, duration_ns, 0, 0, 0, 0])
}

fn ask(context: &mut UserContext, number: usize, arguments: [usize; 6]) -> Trap {
    context.set_register(17, number as u64);
    for (index, argument) in arguments.into_iter().enumerate() {
        context.set_register(10 + index, argument as u64);
    }
    Trap::SystemCall
}

/// Adds the next visit to user mode to the script, which adds the one after it.
fn continue_script(simulation: &Simulation, world: &Arc<Mutex<World>>) {
    let (again, world) = (simulation.clone(), world.clone());
    simulation.script(move |context| {
        continue_script(&again, &world);
        let mut world = world.lock().unwrap();
        let ticks = world.random.of(&[0, 1, 10, 1000, 100_000]);
        again.advance(ticks);
        let trap = world.go_on(context);
        if world.closing == Closing::End {
            again.end_when_idle();
        }
        trap
    });
}

/// Number of calls of a run, a hundred times as many in a long one.
const CALLS: u32 = 20_000;

#[test]
fn random_calls_of_many_processes_break_nothing() {
    memory::fake::init(64 << 20);
    let mut archive = Writer::new(0);
    for folder in ["bin", "tmp", "dev"] {
        archive.directory(folder.as_bytes(), 0o755).unwrap();
    }
    archive.file(b"bin/hello", 0o755, &common::program(&input(), 2 * AREA)).unwrap();
    let archive: &'static [u8] = archive.finish().leak();
    let simulation = Simulation::with_memory(1);
    simulation.lose_hart(1);
    let configuration = property::cases(CALLS);
    let proptest::test_runner::RngSeed::Fixed(seed) = configuration.rng_seed else { panic!("there is no seed") };
    let world = Arc::new(Mutex::new(World {
        random: Random(seed),
        left: configuration.cases,
        is_begun: false,
        closing: Closing::EndOthers,
        made: 0,
        succeeded: 0,
        others: 0,
        threads: 0,
    }));
    continue_script(&simulation, &world);
    // A panic in the kernel ends the test without another word: coroutines are polled by functions that C could call.
    let (console, usual) = (simulation.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |information| {
        eprintln!("{}", console.output());
        usual(information);
    }));
    let status = simulation.run(|| {
        let platform = platform::prepare(&BOOT).unwrap();
        kernel_unix::start(platform, Parts { scheduler: Table::native(), image: &[0; 4096], initial_files: archive })
    });
    let world = world.lock().unwrap();
    let output = simulation.output();
    println!("{} of {} calls did something; {} others", world.succeeded, world.made, world.others);
    assert_eq!(status, Status::Success, "{output}");
    assert_eq!(world.closing, Closing::End);
    assert!(world.succeeded * 10 > world.made && world.others > 0);
}
