//! Asynchronous IPC beside synchronous IPC: equal requests to a server in another address space, with 1 to 256 calls in
//! flight.
//!
//! The synchronous call takes the kernel's fastpath if its message fits into registers, and the slow path if it has a
//! word more. Times are nanoseconds of the machine's clock for each call; where the emulator counts instructions, these
//! are instructions. The server has this program's priority, and a hart of its own if there are several.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;

use coroutine::Priority;
use filesystem::cpio;
use sel4::capability::{Endpoint, Notification, initial};
use sel4::channel::{self, Client, Doorbell, End, Side};
use sel4::mapping::Window;
use sel4::process::{LoadError, Process, Program};
use sel4::{Allocator, BootInformation, Failure, Message, ObjectType, Rights, executor, println};

/// The archive of contained programs.
static CONTAINED: &[u8] = include_bytes!(env!("COPS_CONTAINED_PROGRAMS"));

/// Roles of the peer; see there.
const SERVE: u64 = 0;
const SERVE_SYNCHRONOUSLY: u64 = 1;
const SERVE_BY_STORES: u64 = 8;

/// The highest priority: no thread interrupts.
const PRIORITY: u64 = 255;
/// Calls of one measurement, and of the run before it that warms up.
const CALLS: u64 = 8192;
const WARM_UP: u64 = 512;
/// Calls in flight.
const IN_FLIGHT: [u64; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Number of looks at the rings before a side sleeps, if there are several harts.
const PATIENCE: u64 = 1000;

/// Number of measurements, of which the quickest counts, because of other load on the host.
const ATTEMPTS: usize = 3;

struct Problem(alloc::string::String);

impl From<Failure> for Problem {
    #[track_caller]
    fn from(failure: Failure) -> Problem {
        Problem(alloc::format!("{}: {failure}", core::panic::Location::caller()))
    }
}

impl From<LoadError> for Problem {
    fn from(error: LoadError) -> Problem {
        Problem(alloc::format!("the peer cannot be started: {error}"))
    }
}

/// The measured system.
struct Bench<'a> {
    boot: &'a BootInformation,
    allocator: Allocator,
    window: Window,
}

impl Bench<'_> {
    /// Loads the peer on another hart, or on this one.
    fn load(&mut self, core: u64) -> Result<Process, Problem> {
        let entry = cpio::entries(CONTAINED).filter_map(Result::ok).find(|entry| entry.path == b"bin/ipc-peer");
        let file = entry.ok_or_else(|| Problem("the program does not contain the peer".into()))?.data;
        let nobody = Endpoint::from_pointer(self.allocator.object(ObjectType::Endpoint)?);
        let program = Program { core, ..Program::new("ipc-peer", file, PRIORITY) };
        Ok(Process::load(&mut self.allocator, &mut self.window, &program, nobody, 1)?)
    }
}

/// Returns the nanoseconds of each call, at best.
fn quickest(mut measure: impl FnMut() -> u64) -> f64 {
    let ticks = (0..ATTEMPTS).map(|_| measure()).min().unwrap_or_default();
    // The machine's clock has a tick each 100 ns.
    ticks as f64 * 100.0 / CALLS as f64
}

/// Measures calls over an endpoint, one after the other; `words` for each message.
fn synchronous(endpoint: Endpoint, words: usize) -> f64 {
    let message = [1; 8];
    let call = || {
        let answer = endpoint.call(&Message::new(0, &message[..words]));
        assert_eq!(answer.word(0), Some(2), "the server adds one");
    };
    (0..WARM_UP).for_each(|_| call());
    quickest(|| {
        let start = sel4::time::now();
        (0..CALLS).for_each(|_| call());
        sel4::time::now() - start
    })
}

/// Runs `coroutines` coroutines that call one after the other, `calls` times together.
async fn call_from<D: Doorbell>(client: &Client<D>, coroutines: u64, calls: u64) {
    let handles: Vec<_> = (0..coroutines)
        .map(|_| {
            let client = client.clone();
            executor::spawn(Priority::DEFAULT, async move {
                for number in 0..calls / coroutines {
                    let answer = client.call([number, 0, 0, 0, 0, 0, 0]).await;
                    assert_eq!(answer.map(|words| words[0]), Ok(number + 1), "the server adds one");
                }
            })
        })
        .collect();
    for handle in handles {
        handle.await.expect("it is never cancelled");
    }
}

fn asynchronous<D: Doorbell>(name: &'static str, doorbell: Notification, end: End<D>) {
    executor::run(doorbell, async move {
        let client = Client::new(end);
        let mut points = Vec::new();
        for coroutines in IN_FLIGHT {
            call_from(&client, coroutines, WARM_UP).await;
            let mut best = u64::MAX;
            for _ in 0..ATTEMPTS {
                let start = sel4::time::now();
                call_from(&client, coroutines, CALLS).await;
                best = best.min(sel4::time::now() - start);
            }
            let each = best as f64 * 100.0 / CALLS as f64;
            println!("bench: {{\"id\": \"{name}-{coroutines}\", \"value\": {each:.1}, \"unit\": \"ns\"}}");
            points.push(alloc::format!("[{coroutines}, {each:.1}]"));
        }
        let points = points.join(", ");
        println!(
            "bench: {{\"series\": \"{name}\", \"unit\": \"ns\", \"x_unit\": \"calls in flight\", \"points\": [{points}]}}"
        );
    });
}

fn run(bench: &mut Bench<'_>) -> Result<(), Problem> {
    let cores = bench.boot.cores().1;
    // The synchronous server on this hart, where a switch to it is quickest.
    let mut server = bench.load(0)?;
    let endpoint = bench.allocator.object(ObjectType::Endpoint)?;
    let pointer = server.grant(endpoint, Rights::ALL, 0)?;
    [SERVE_SYNCHRONOUSLY, pointer].into_iter().for_each(|word| server.argument(word));
    server.start(&mut bench.allocator)?;
    for (id, words) in [("synchronous-short", 4), ("synchronous-long", 5)] {
        let each = synchronous(Endpoint::from_pointer(endpoint), words);
        println!("bench: {{\"id\": \"{id}\", \"value\": {each:.1}, \"unit\": \"ns\"}}");
    }
    server.end(&mut bench.allocator)?;

    let patience = if cores > 1 { PATIENCE } else { 0 };
    executor::set_patience(patience as u32);
    let doorbell = bench.allocator.object(ObjectType::Notification)?;
    system_calls("system-call", Notification::from_pointer(doorbell));
    for role in [SERVE, SERVE_BY_STORES] {
        let mut server = bench.load(1 % cores)?;
        let notification = server.notification(&mut bench.allocator)?;
        let side = Side { process: &mut server, notification };
        let (connection, end) = channel::connect_to(&mut bench.allocator, &mut bench.window, 256, 0, doorbell, side)?;
        [role, patience].into_iter().for_each(|word| server.argument(word));
        let notification = Notification::from_pointer(doorbell);
        if role == SERVE {
            server.start(&mut bench.allocator)?;
            asynchronous("asynchronous", notification, end);
        } else {
            // Irreversible: so this is measured last.
            if !executor::receive_stores(initial::THREAD, notification)? {
                break;
            }
            server.start(&mut bench.allocator)?;
            let end = end.signalled_by_stores(&mut bench.allocator, &mut bench.window)?;
            asynchronous("by-stores", notification, end);
            system_calls("system-call-virtualised", notification);
        }
        connection.close()?;
        server.end(&mut bench.allocator)?;
    }
    Ok(())
}

/// Measures a system call that does next to nothing: it polls a notification.
fn system_calls(id: &str, notification: Notification) {
    let each = quickest(|| {
        let start = sel4::time::now();
        (0..CALLS).for_each(|_| _ = notification.poll());
        sel4::time::now() - start
    });
    println!("bench: {{\"id\": \"{id}\", \"value\": {each:.1}, \"unit\": \"ns\"}}");
}

#[sel4::root_task]
fn main(boot: BootInformation) {
    let allocator = Allocator::new(&boot);
    let window = Window::new(0x10_0000_0000, 0x18_0000_0000);
    let mut bench = Bench { boot: &boot, allocator, window };
    let grown = sel4::heap::grow(&mut bench.allocator, &mut bench.window, 2).map_err(Problem::from);
    if let Err(Problem(problem)) = grown.and_then(|()| run(&mut bench)) {
        println!("the benchmark cannot go on: {problem}");
    }
}
