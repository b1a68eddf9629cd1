//! The benefit of asynchronous invocations: the papers' memory server, which maps and unmaps pages for its clients.
//!
//! The server has frames and an address for each. Each client is a coroutine in the server, which has its page mapped
//! and unmapped [`ROUNDS`] times. This work is done by system calls, one after the other and without coroutines; by
//! coroutines whose invocations go through memory; and by coroutines in the adaptive way. A line for each reports the
//! time of an invocation, by the number of frames, and the number of system calls for each invocation. With a clock
//! that counts instructions the times are instructions.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write as _;

use coroutine::Priority;
use sel4::asynchronous::{Calls, Way};
use sel4::capability::{Notification, Page, Slot, initial};
use sel4::mapping::{self, Window};
use sel4::{Allocator, BootInformation, Failure, ObjectType, Result, Rights, executor, println};

/// Number of times that each frame is mapped and unmapped.
const ROUNDS: u8 = 10;
/// Largest number of frames, as a power of two.
const LARGEST: u32 = 10;
/// Least number of invocations of a measurement.
const INVOCATIONS: u64 = 1000;
/// Number of measurements of each way, in turns; the median counts. More with few frames, where a measurement is short
/// beside the other load of the host.
const REPETITIONS: usize = 9;
const MANY: u64 = 128;
const REPETITIONS_WITH_MANY: usize = 3;
/// Number of looks for responses before the program sleeps, where other harts can work meanwhile.
const PATIENCE: u32 = 20_000;
/// The numbers of frames, as powers of two, and the least number of invocations, on a machine that is too slow for all:
/// a core in simulation says what it is in its device tree.
const FEW: &[u32] = &[0, 3, 6];
const FEW_INVOCATIONS: u64 = 320;
const SLOW: &[u8] = b"in RTL simulation";
/// Nanoseconds in a unit of the machine's time.
const UNIT: u64 = 100;

/// First address of the mapped pages.
const ADDRESS: u64 = 0x20_0000_0000;

/// The papers' allocator: frames, and their addresses.
struct Server {
    first: u64,
}

impl Server {
    fn page(&self, index: u64) -> (Page, u64) {
        (Page::from_pointer(self.first + index), ADDRESS + (index << 12))
    }

    /// Makes all requests for a number of frames, one after the other.
    fn serve_one_by_one(&self, frames: u64) -> Result<()> {
        for index in 0..frames {
            let (page, address) = self.page(index);
            for _ in 0..ROUNDS {
                page.map(initial::ADDRESS_SPACE, address, Rights::READ_WRITE, 0)?;
                page.unmap()?;
            }
        }
        Ok(())
    }

    /// Makes the requests for one frame. All that the coroutine keeps is in one future: an `async` function would have
    /// its arguments twice, in its caller's future and in its own.
    fn serve(&self, calls: Arc<Calls>, index: u64) -> impl Future<Output = Result<()>> + Send + 'static {
        let (page, address) = self.page(index);
        async move {
            for _ in 0..ROUNDS {
                page.map_async(&calls, initial::ADDRESS_SPACE, address, Rights::READ_WRITE, 0).await?;
                page.unmap_async(&calls).await?;
            }
            Ok(())
        }
    }
}

fn now() -> u64 {
    let time;
    // SAFETY: only reads a counter.
    unsafe { core::arch::asm!("rdtime {}", out(reg) time, options(nomem, nostack)) };
    time
}

/// The cost of one way for a number of frames: time for each invocation, and system calls.
#[derive(Clone, Copy, Default)]
struct Cost {
    time: f64,
    entries: f64,
}

struct Bench {
    server: Arc<Server>,
    doorbell: Notification,
    asynchronous: Arc<Calls>,
    adaptive: Arc<Calls>,
    /// Least number of invocations of a measurement.
    invocations: u64,
}

impl Bench {
    /// Measures a way once.
    fn measure(&self, way: Way, frames: u64) -> Result<Cost> {
        let times = self.invocations.div_ceil(2 * u64::from(ROUNDS) * frames);
        let invocations = 2 * u64::from(ROUNDS) * frames * times;
        let (begin, entries) = match way {
            Way::Synchronous => {
                let begin = now();
                for _ in 0..times {
                    self.server.serve_one_by_one(frames)?;
                }
                (begin, invocations)
            }
            Way::Asynchronous | Way::Adaptive => {
                let calls = if way == Way::Adaptive { &self.adaptive } else { &self.asynchronous }.clone();
                calls.register(initial::THREAD)?;
                let before = calls.entries() + executor::entries();
                let (server, of_main) = (self.server.clone(), calls.clone());
                let begin = now();
                executor::run(self.doorbell, async move {
                    for _ in 0..times {
                        let handles: Vec<_> = (0..frames)
                            .map(|index| executor::spawn(Priority::DEFAULT, server.serve(of_main.clone(), index)))
                            .collect();
                        for handle in handles {
                            handle.await.expect("it is never cancelled")?;
                        }
                    }
                    Ok::<(), Failure>(())
                })?;
                (begin, calls.entries() + executor::entries() - before)
            }
        };
        let time = (now() - begin) * UNIT;
        Ok(Cost { time: time as f64 / invocations as f64, entries: entries as f64 / invocations as f64 })
    }
}

fn middle(costs: &mut [Cost]) -> Cost {
    let mut by = |of: fn(&Cost) -> f64| {
        costs.sort_unstable_by(|one, other| of(one).total_cmp(&of(other)));
        of(&costs[costs.len() / 2])
    };
    Cost { time: by(|cost| cost.time), entries: by(|cost| cost.entries) }
}

fn report(name: &str, unit: &str, points: impl Iterator<Item = (u64, f64)>) {
    let mut text = String::new();
    for (frames, value) in points {
        let comma = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{comma}[{frames}, {value:.4}]");
    }
    println!("bench: {{\"series\": \"{name}\", \"unit\": \"{unit}\", \"x_unit\": \"frames\", \"points\": [{text}]}}");
}

fn run(boot: &BootInformation) -> Result<()> {
    let mut allocator = Allocator::new(boot);
    let mut window = Window::new(0x10_0000_0000, 0x18_0000_0000);
    let is_slow = boot.device_tree().is_some_and(|tree| tree.windows(SLOW.len()).any(|part| part == SLOW));
    // A slow machine takes millions of cycles to clear each step of the heap.
    sel4::heap::grow(&mut allocator, &mut window, if is_slow { 1 } else { 2 })?;
    let doorbell = Notification::from_pointer(allocator.object(ObjectType::Notification)?);
    let ringer = allocator.slot()?;
    Slot::own(ringer).mint_from(Slot::own(doorbell.pointer()), Rights::WRITE, executor::RINGS)?;
    let ringer = Notification::from_pointer(ringer);
    let exponents: Vec<u32> = if is_slow { FEW.to_vec() } else { (0..=LARGEST).collect() };
    let most: u64 = 1 << exponents.iter().max().copied().unwrap_or(0);
    let invocations = if is_slow { FEW_INVOCATIONS } else { INVOCATIONS };
    let first = allocator.make(ObjectType::Page, 0, most.min(256))?;
    for _ in 1..most / 256 {
        allocator.make(ObjectType::Page, 0, 256)?;
    }
    let server = Arc::new(Server { first });
    // The page tables exist before the measurement.
    for index in (0..most).step_by(512) {
        let (page, address) = server.page(index);
        mapping::map(&mut allocator, initial::ADDRESS_SPACE, page, address, Rights::READ_WRITE, 0)?;
        page.unmap()?;
    }
    // So that a worker that never sleeps need not poll its doorbell.
    executor::receive_interrupts(initial::THREAD, doorbell)?;
    let harts = boot.cores().1;
    if harts > 1 {
        executor::set_patience(PATIENCE);
    }
    let mut calls = |way| Calls::new(&mut allocator, &mut window, most as usize, (initial::THREAD, ringer), harts, way);
    let (asynchronous, adaptive) = (calls(Way::Asynchronous)?, calls(Way::Adaptive)?);
    let bench = Bench { server, doorbell, asynchronous, adaptive, invocations };
    let ways = [("synchronous", Way::Synchronous), ("asynchronous", Way::Asynchronous), ("adaptive", Way::Adaptive)];
    let mut costs = [const { Vec::new() }; 3];
    for &exponent in &exponents {
        let mut measured = [[Cost::default(); REPETITIONS]; 3];
        let repetitions = match 1 << exponent {
            // The first fills the caches, and the other one counts.
            _ if is_slow => 2,
            ..MANY => REPETITIONS,
            _ => REPETITIONS_WITH_MANY,
        };
        for repetition in 0..repetitions {
            for (place, (name, way)) in measured.iter_mut().zip(ways) {
                let frames = 1 << exponent;
                let cost = bench.measure(way, frames)?;
                place[repetition] = cost;
                if is_slow {
                    // Its profile needs a line for each measurement.
                    let kind = if repetition == 0 { "first-" } else { "" };
                    println!(
                        "bench: {{\"id\": \"{kind}{name}-{frames}\", \"value\": {:.1}, \"unit\": \"ns\"}}",
                        cost.time
                    );
                }
            }
        }
        for (costs, measured) in costs.iter_mut().zip(&mut measured) {
            costs.push(if is_slow { measured[1] } else { middle(&mut measured[..repetitions]) });
        }
    }
    for ((name, _), costs) in ways.iter().zip(&costs) {
        let points =
            |of: fn(&Cost) -> f64| exponents.iter().zip(costs).map(move |(exponent, cost)| (1 << exponent, of(cost)));
        report(name, "ns", points(|cost| cost.time));
        let mut entries = String::from(*name);
        entries.push_str("-entries");
        report(&entries, "system calls", points(|cost| cost.entries));
    }
    Ok(())
}

#[sel4::root_task]
fn main(boot: BootInformation) {
    if let Err(failure) = run(&boot) {
        println!("the benchmark cannot go on: {failure}");
    }
}
