//! Asynchronous calls beside synchronous ones: the cost of each way by the number of calls in flight.
//!
//! There are as many coroutines as calls in flight, and each makes one call after another, as programs do: the cost of
//! a call includes suspending the coroutine, waking it and polling it again. The ways are: *synchronous* (the worker
//! makes the call and continues), *direct* (a trap that returns at once), *ring* (requests in shared memory),
//! *adaptive*, which chooses between the two; and *together*, where one coroutine makes as many calls at once
//! (`cops::call::all`) and is woken once for all. Calls that need not wait show the cost of crossing into the kernel;
//! reading an empty pipe shows the cost of waiting.
//!
//! `speed_vs_sync` is that of coroutines in the adaptive way. `instructions_saved` is that of calls made together, for
//! the cheapest call, which is the cost of the crossing itself. Each call has figures of its own beside these.
//!
//! With the argument `count` it reports instructions and kernel entries; with `time` the speed in comparison with
//! synchronous calls, which has a meaning only on a real clock.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use abi_unix::{Counter, SystemCall};
use cops::call::{Operation, Way, set_way};
use cops::io::pipe;
use cops::system;

use crate::{Outcome, attempt, figure, now, repetitions, series};

/// Numbers of calls in flight; those above a sixteenth of the calls are left out.
const IN_FLIGHT: [usize; 8] = [1, 2, 4, 16, 64, 256, 512, 1024];
/// Calls of each measurement, over all coroutines, where time is cheap.
const CALLS: usize = 16 * 1024;

/// The measured calls.
#[derive(Clone, Copy)]
enum Call {
    /// Does nothing: `getpid`.
    Nothing,
    /// Reads a clock: `clock_gettime`.
    Clock,
    /// Writes 64 bytes to `/dev/null`.
    Write,
    /// Reads 64 bytes of a file at an offset.
    ReadAt,
}

const CALLS_THAT_NEED_NOT_WAIT: [Call; 4] = [Call::Nothing, Call::Clock, Call::Write, Call::ReadAt];

/// The objects of the calls.
struct Objects {
    null: cops::file::File,
    file: cops::file::File,
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Call::Nothing => "getpid",
            Call::Clock => "clock_gettime",
            Call::Write => "write",
            Call::ReadAt => "pread64",
        }
    }

    /// Returns number and arguments, for a buffer.
    fn arguments(self, objects: &Objects, buffer: *mut u8) -> (SystemCall, [usize; 4]) {
        let buffer = buffer as usize;
        match self {
            Call::Nothing => (SystemCall::GetProcess, [0; 4]),
            Call::Clock => (SystemCall::GetTime, [1, buffer, 0, 0]),
            Call::Write => (SystemCall::Write, [objects.null.descriptor().raw() as usize, buffer, 64, 0]),
            Call::ReadAt => (SystemCall::ReadAt, [objects.file.descriptor().raw() as usize, buffer, 64, 0]),
        }
    }

    /// Makes `count` calls, one after another, each awaited.
    async fn repeat(self, objects: Arc<Objects>, count: usize) -> bool {
        let mut buffer = alloc::vec![0u8; 64].into_boxed_slice();
        for _ in 0..count {
            let (call, arguments) = self.arguments(&objects, buffer.as_mut_ptr());
            // SAFETY: the kernel writes to the box only, which the call owns.
            let (result, returned): (_, Box<[u8]>) = unsafe { Operation::new(call, arguments, buffer) }.await;
            if result.is_err() {
                return false;
            }
            buffer = returned;
        }
        true
    }

    /// Makes `count` calls, always `in_flight` at once.
    async fn repeat_together(self, objects: Arc<Objects>, in_flight: usize, count: usize) -> bool {
        let mut buffers: Vec<_> = (0..in_flight).map(|_| alloc::vec![0u8; 64].into_boxed_slice()).collect();
        for _ in 0..count / in_flight {
            let operations = buffers.drain(..).map(|mut buffer| {
                let (call, arguments) = self.arguments(&objects, buffer.as_mut_ptr());
                // SAFETY: the kernel writes to the box only, which the call owns.
                unsafe { Operation::new(call, arguments, buffer) }
            });
            for (result, buffer) in cops::call::all(operations.collect()).await {
                if result.is_err() {
                    return false;
                }
                buffers.push(buffer);
            }
        }
        true
    }

    /// Makes `count` calls, one after another, synchronously.
    async fn repeat_synchronously(self, objects: Arc<Objects>, count: usize) -> bool {
        let mut buffer = alloc::vec![0u8; 64].into_boxed_slice();
        for _ in 0..count {
            let (call, [a0, a1, a2, a3]) = self.arguments(&objects, buffer.as_mut_ptr());
            // SAFETY: the kernel writes to the box only.
            let result = unsafe { system::syscall(call as usize, [a0, a1, a2, a3, 0, 0]) };
            if abi_unix::errno::decode(result).is_err() {
                return false;
            }
        }
        true
    }
}

/// The way in which calls are made.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Synchronous,
    Asynchronous(Way),
    Together,
}

const MANNERS: [(Manner, &str); 5] = [
    (Manner::Synchronous, "synchronous"),
    (Manner::Asynchronous(Way::Direct), "direct"),
    (Manner::Asynchronous(Way::Ring), "ring"),
    (Manner::Asynchronous(Way::Adaptive), "adaptive"),
    (Manner::Together, "together"),
];

/// The cost of a call.
#[derive(Clone, Copy)]
struct Cost {
    ns: f64,
    entries: f64,
}

/// Makes all calls with `in_flight` coroutines; returns the mean cost of one.
async fn measure_one(call: Call, manner: Manner, in_flight: usize, objects: &Arc<Objects>) -> Result<Cost, String> {
    if let Manner::Asynchronous(way) = manner {
        set_way(way);
    }
    // Once to make rings and records, then for the figure.
    run(call, manner, in_flight, objects, in_flight.max(64)).await?;
    let traps = attempt!(system::system::counter(Counter::Traps));
    let start = now();
    let calls = repetitions(CALLS);
    run(call, manner, in_flight, objects, calls).await?;
    let ns = now() - start;
    let traps = attempt!(system::system::counter(Counter::Traps)) - traps;
    set_way(Way::Adaptive);
    Ok(Cost { ns: ns as f64 / calls as f64, entries: traps as f64 / calls as f64 })
}

async fn run(call: Call, manner: Manner, in_flight: usize, objects: &Arc<Objects>, calls: usize) -> Outcome {
    // Calls at once are made by one coroutine, or by as many.
    let coroutines = if manner == Manner::Together { 1 } else { in_flight };
    let mut handles = Vec::with_capacity(coroutines);
    for _ in 0..coroutines {
        let objects = objects.clone();
        let count = calls / coroutines;
        handles.push(match manner {
            Manner::Together => cops::spawn(call.repeat_together(objects, in_flight, count)),
            Manner::Synchronous => cops::spawn(call.repeat_synchronously(objects, count)),
            Manner::Asynchronous(_) => cops::spawn(call.repeat(objects, count)),
        });
    }
    for handle in handles {
        if !attempt!(handle.await) {
            return Err(alloc::format!("{} failed", call.name()));
        }
    }
    Ok(())
}

/// Measures a byte through a pipe that is empty when it is read: pairs of coroutines, one that reads and one that
/// writes. The cost is that of one turn, which is a call that waits and one that does not.
async fn waiting(manner: Manner, in_flight: usize) -> Result<Cost, String> {
    if let Manner::Asynchronous(way) = manner {
        set_way(way);
    }
    let turns = repetitions(CALLS) / 2 / in_flight;
    let failed = Arc::new(AtomicUsize::new(0));
    let traps = attempt!(system::system::counter(Counter::Traps));
    let start = now();
    let mut handles = Vec::with_capacity(2 * in_flight);
    for _ in 0..in_flight {
        let (reader, writer) = attempt!(pipe());
        let (back_reader, back_writer) = attempt!(pipe());
        let wrong = failed.clone();
        handles.push(cops::spawn(async move {
            let mut buffer = alloc::vec![0u8; 1];
            for _ in 0..turns {
                let (read, returned) = reader.read(buffer).await;
                let (written, returned) = back_writer.write(returned).await;
                buffer = returned;
                wrong.fetch_add(usize::from(read != Ok(1) || written != Ok(1)), Ordering::Relaxed);
            }
        }));
        let wrong = failed.clone();
        handles.push(cops::spawn(async move {
            let mut buffer = alloc::vec![0u8; 1];
            for _ in 0..turns {
                let (written, returned) = writer.write(buffer).await;
                let (read, returned) = back_reader.read(returned).await;
                buffer = returned;
                wrong.fetch_add(usize::from(read != Ok(1) || written != Ok(1)), Ordering::Relaxed);
            }
        }));
    }
    for handle in handles {
        attempt!(handle.await);
    }
    let ns = now() - start;
    let traps = attempt!(system::system::counter(Counter::Traps)) - traps;
    set_way(Way::Adaptive);
    if failed.load(Ordering::Relaxed) > 0 {
        return Err("a byte was lost".into());
    }
    let made = (turns * in_flight * 2) as f64;
    Ok(Cost { ns: ns as f64 / made, entries: traps as f64 / made })
}

async fn objects() -> Result<Arc<Objects>, String> {
    attempt!(cops::file::write("/tmp/bench-calls", alloc::vec![7u8; 4096]).await);
    let null = attempt!(cops::file::File::open_with("/dev/null", abi_unix::types::open::RDWR));
    let file = attempt!(cops::file::File::open("/tmp/bench-calls"));
    Ok(Arc::new(Objects { null, file }))
}

pub async fn measure(part: &str) -> Outcome {
    match part {
        "count" => count().await,
        "time" => time().await,
        _ => Err("say `count` or `time`".into()),
    }
}

/// Reports instructions and kernel entries, where an instruction is a nanosecond.
async fn count() -> Outcome {
    let objects = objects().await?;
    let most = repetitions(CALLS) / 16;
    let mut entries_at_1024: Option<f64> = None;
    for call in CALLS_THAT_NEED_NOT_WAIT {
        let mut synchronous = 0.0;
        for (manner, name) in MANNERS {
            let (mut costs, mut entries) = (Vec::new(), Vec::new());
            for in_flight in IN_FLIGHT.into_iter().filter(|number| *number <= most) {
                let cost = measure_one(call, manner, in_flight, &objects).await?;
                costs.push((in_flight as f64, cost.ns));
                entries.push((in_flight as f64, cost.entries));
                match (manner, in_flight) {
                    (Manner::Synchronous, 1) => synchronous = cost.ns,
                    (Manner::Asynchronous(Way::Adaptive), 1) => {
                        figure(&alloc::format!("{}-instructions_saved_1", call.name()), synchronous / cost.ns, "times");
                    }
                    (Manner::Together, 64) => {
                        let saved = synchronous / cost.ns;
                        figure(&alloc::format!("{}-instructions_saved_64", call.name()), saved, "times");
                        if let Call::Nothing = call {
                            figure("instructions_saved_64", saved, "times");
                        }
                    }
                    (Manner::Asynchronous(Way::Adaptive), 1024) => {
                        entries_at_1024 = Some(entries_at_1024.map_or(cost.entries, |most| most.max(cost.entries)));
                    }
                    _ => {}
                }
            }
            series(&alloc::format!("{}-{name}", call.name()), "instructions", "in flight", &costs);
            series(&alloc::format!("{}-{name}-entries", call.name()), "entries", "in flight", &entries);
        }
    }
    for (manner, name) in MANNERS.into_iter().filter(|(manner, _)| matches!(manner, Manner::Asynchronous(_))) {
        let (mut costs, mut entries) = (Vec::new(), Vec::new());
        for in_flight in [1, 4, 16, 64, 256].into_iter().filter(|number| *number <= most) {
            let cost = waiting(manner, in_flight).await?;
            costs.push((in_flight as f64, cost.ns));
            entries.push((in_flight as f64, cost.entries));
        }
        series(&alloc::format!("pipe-{name}"), "instructions", "pairs", &costs);
        series(&alloc::format!("pipe-{name}-entries"), "entries", "pairs", &entries);
    }
    if let Some(entries) = entries_at_1024 {
        figure("entries_per_call_1024", entries, "entries");
    }
    Ok(())
}

/// Number of measurements of each. The least counts: other load of the host only adds to it.
const REPETITIONS: usize = 9;

/// Reports speeds by the clock, as a multiple of the synchronous one.
async fn time() -> Outcome {
    let objects = objects().await?;
    let harts = cops::time::global_page().map_or(1, |page| page.harts.load(Ordering::Relaxed));
    let suffix = if harts == 1 { "_one_hart" } else { "" };
    for in_flight in [1, 64] {
        let mut worst = f64::INFINITY;
        for call in CALLS_THAT_NEED_NOT_WAIT {
            // In turns, so that all meet the same load of the host.
            let mut least = [f64::INFINITY; MANNERS.len()];
            for _ in 0..REPETITIONS {
                for (place, (manner, _)) in least.iter_mut().zip(MANNERS) {
                    *place = place.min(measure_one(call, manner, in_flight, &objects).await?.ns);
                }
            }
            for ((manner, name), time) in MANNERS.into_iter().zip(least).skip(1) {
                let speed = least[0] / time;
                figure(&alloc::format!("{}-{name}_{in_flight}{suffix}", call.name()), speed, "times");
                if manner == Manner::Asynchronous(Way::Adaptive) {
                    worst = worst.min(speed);
                }
            }
        }
        figure(&alloc::format!("speed_vs_sync_{in_flight}{suffix}"), worst, "times");
    }
    Ok(())
}
