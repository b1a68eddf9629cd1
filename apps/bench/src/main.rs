//! Measurements on the target: `bench switch|syscall|matrix|memory|boot|async-calls`, and the experiments of the
//! papers, which take arguments: `bench ring-counter|ring-pipes|workers|user-interrupt|matrix-models|creation
//! ARGUMENT...`; and attacks by the name of their scenario: `bench fairness NAME ARGUMENT...`.
//!
//! Run under QEMU's `-icount shift=0`, where an instruction takes a nanosecond of the machine's time, so that the clock
//! counts instructions: of this process, of the kernel, and of other processes. Every figure is the mean of very many
//! repetitions. Other costs (starting, waiting for the end) are excluded by measuring twice with different numbers of
//! repetitions and dividing the difference.
//!
//! A last argument `/N` divides the repetitions by N, for machines that are slow: cores in simulation.
//!
//! Results are lines that begin with `bench: ` and continue as JSON; all other output is for people.
#![no_std]
#![no_main]

extern crate alloc;

mod asynchronous;
mod client;
mod fairness;
mod matrix_server;
mod memory;
mod rings;
mod switch;
mod syscall;
mod user_interrupt;
mod workers;

use alloc::boxed::Box;
use alloc::string::String;
use core::fmt::Write;
use core::pin::Pin;
use core::sync::atomic::{AtomicUsize, Ordering};

use cops::time::Instant;
use cops::{eprintln, println};

/// The result of a measurement: the error is the reason why it could not be made.
type Outcome = Result<(), String>;

/// Returns with the error of an expression.
#[macro_export]
macro_rules! attempt {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => return Err(alloc::format!("{}:{}: {}: {error:?}", file!(), line!(), stringify!($result))),
        }
    };
}

/// The divisor of all numbers of repetitions.
static DIVISOR: AtomicUsize = AtomicUsize::new(1);

/// Returns the number of repetitions of a measurement that repeats this often where time is cheap.
fn repetitions(usual: usize) -> usize {
    (usual / DIVISOR.load(Ordering::Relaxed)).max(1)
}

/// Returns nanoseconds, which are instructions where this program is run for its figures.
fn now() -> u64 {
    Instant::now().as_ns()
}

/// Returns the command line's argument at a place; the scenario's name is at 1.
fn argument(place: usize) -> Result<String, String> {
    match cops::arguments().nth(place).map(|text| text.to_str()) {
        Some(Ok(text)) => Ok(text.into()),
        _ => Err(alloc::format!("argument {place} is missing")),
    }
}

/// Reports one figure.
fn figure(id: &str, value: f64, unit: &str) {
    println!("bench: {{\"id\": \"{id}\", \"value\": {value}, \"unit\": \"{unit}\"}}");
}

/// Reports values along an axis.
fn series(id: &str, unit: &str, x_unit: &str, points: &[(f64, f64)]) {
    let mut text = String::new();
    for (index, (x, y)) in points.iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}[{x}, {y}]");
    }
    println!("bench: {{\"series\": \"{id}\", \"unit\": \"{unit}\", \"x_unit\": \"{x_unit}\", \"points\": [{text}]}}");
}

#[cops::main]
async fn main() -> i32 {
    let name = cops::arguments().nth(1).and_then(|name| name.to_str().ok()).unwrap_or("");
    let part = cops::arguments().nth(2).and_then(|part| part.to_str().ok()).unwrap_or("");
    let divisor = cops::arguments().last().and_then(|last| last.to_str().ok()?.strip_prefix('/')?.parse().ok());
    if let Some(divisor @ 1..) = divisor {
        DIVISOR.store(divisor, Ordering::Relaxed);
    }
    // Each a function of its own, so that none pays for the registers that another one saves.
    let measurement: Pin<Box<dyn Future<Output = Outcome> + Send>> = match name {
        "switch" => Box::pin(switch::measure()),
        "syscall" => Box::pin(syscall::measure()),
        "matrix" => Box::pin(matrix_server::measure()),
        "memory" => Box::pin(memory::measure()),
        "async-calls" => Box::pin(asynchronous::measure(part)),
        "boot" => Box::pin(matrix_server::measure_boot()),
        "ring-counter" => Box::pin(rings::counter()),
        "ring-pipes" => Box::pin(rings::pipes()),
        "workers" => Box::pin(workers::measure()),
        "user-interrupt" => Box::pin(user_interrupt::measure()),
        "matrix-models" => Box::pin(client::models()),
        "creation" => Box::pin(client::creation()),
        "fairness" => Box::pin(fairness::measure(part)),
        _ => {
            eprintln!(
                "usage: bench switch|syscall|matrix|memory|boot|async-calls|ring-counter|ring-pipes|workers|user-interrupt|matrix-models|creation|fairness"
            );
            return 2;
        }
    };
    match measurement.await {
        Ok(()) => 0,
        Err(reason) => {
            eprintln!("{reason}");
            1
        }
    }
}
