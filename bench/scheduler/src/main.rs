//! The scheduler beside other executors of the Rust world, on the host.
//!
//! ```text
//! scheduler-bench run ENGINE OPERATION COUNT [WORKERS]   do it, under a measuring tool
//! scheduler-bench count                                  instructions for each operation, counted by valgrind
//! scheduler-bench time                                   time for each operation, with 1 to 8 workers
//! ```
//!
//! `count` runs itself under `valgrind --tool=callgrind` with two counts and divides the difference, so that starting
//! and ending drop out; with one worker the result is the same on every run. With several, valgrind runs one thread at
//! a time and the counts vary a little. Both print the lines that `cargo xtask bench` collects. To see the parts of an
//! operation:
//!
//! ```text
//! valgrind --tool=callgrind --callgrind-out-file=profile target/release/scheduler-bench run cops wake 100000
//! callgrind_annotate profile
//! ```
//!
//! Every engine runs the same futures, and between them the engine's own way to spawn, to wake and to yield. They are
//! not equal in features: `embassy-executor` has neither priorities nor workers, and its tasks lie in static memory, so
//! that its spawn is compared without an allocation; the others allocate. Only ours has priorities.

#![deny(unsafe_op_in_unsafe_fn)]

mod engines;
mod futures;

use std::process::{Command, ExitCode};
use std::time::Instant;

use engines::{ENGINES, Engine, Operation, WORKERS};

/// Operations of the smaller of two counted runs, by all workers together; the larger has three times as many.
const FEW: u64 = 20_000;
/// Numbers of workers in counted runs.
const COUNTED_WORKERS: [usize; 4] = [1, 2, 4, 8];
/// Operations of a timed run, by all workers together.
const TIMED: u64 = 400_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["run", engine, operation, count] => run(engine, operation, count, "1"),
        ["run", engine, operation, count, workers] => run(engine, operation, count, workers),
        ["count"] => count(),
        ["time"] => time(),
        _ => Err("usage: scheduler-bench run ENGINE OPERATION COUNT [WORKERS] | count | time".to_string()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("scheduler-bench: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(engine: &str, operation: &str, count: &str, workers: &str) -> Result<(), String> {
    let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is no number"));
    let engine = Engine::find(engine)?;
    let operation = Operation::find(operation)?;
    let workers = number(workers)? as usize;
    if !(1..=WORKERS).contains(&workers) {
        return Err(format!("between 1 and {WORKERS} workers, not {workers}"));
    }
    engine.run(operation, number(count)?, workers)
}

/// Returns the instructions of one run of ourselves under valgrind.
fn instructions(engine: &Engine, operation: Operation, count: u64, workers: usize) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find myself: {error}"))?;
    let output = Command::new("valgrind")
        // Fair: a thread that waits for another in a loop would else keep the one processor that there is under
        // valgrind.
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--fair-sched=try"])
        .arg(program)
        .args(["run", engine.name, operation.name(), &count.to_string(), &workers.to_string()])
        .output()
        .map_err(|error| format!("cannot run valgrind: {error}; it is the package `valgrind`"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    match collected(&text) {
        Some(collected) if output.status.success() => Ok(collected),
        _ => Err(format!("{} {} failed under valgrind:\n{text}", engine.name, operation.name())),
    }
}

/// Returns the number in callgrind's line `==PID== Collected : NUMBER`.
fn collected(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok())
}

/// Returns the instructions of one operation: the additional cost of additional operations.
fn instructions_each(engine: &Engine, operation: Operation, workers: usize) -> Result<f64, String> {
    // A count is for each worker.
    let few = FEW / operation.times_each() / workers as u64;
    let runs = [few, 3 * few].map(|count| instructions(engine, operation, count, workers));
    let [few_cost, many_cost] = runs;
    let operations = 2 * few * operation.times_each() * workers as u64;
    Ok((many_cost? as f64 - few_cost? as f64) / operations as f64)
}

/// Prints the figures of one worker, and for several workers series of the instructions and of the ratio.
fn count() -> Result<(), String> {
    for operation in Operation::ALL {
        let mut points = vec![Vec::new(); ENGINES.len()];
        let mut ratios = Vec::new();
        for workers in COUNTED_WORKERS {
            let mut best: Option<f64> = None;
            let mut ours = None;
            for (engine, points) in ENGINES.iter().zip(&mut points) {
                if !engine.offers(operation, workers) {
                    continue;
                }
                let each = instructions_each(engine, operation, workers)?;
                points.push((workers, each));
                if workers == 1 {
                    figure(&format!("{}-{}", operation.name(), engine.name), each, "instructions");
                }
                if engine.is_ours() {
                    ours = Some(each);
                } else {
                    best = Some(best.map_or(each, |best| best.min(each)));
                }
            }
            if let (Some(ours), Some(best)) = (ours, best) {
                ratios.push((workers, ours / best));
            }
        }
        if let Some((1, ratio)) = ratios.first() {
            figure(&format!("{}-ratio", operation.name()), *ratio, "times the best of the others");
        }
        if operation.has_workers() {
            for (engine, points) in ENGINES.iter().zip(&points).filter(|(_, points)| points.len() > 1) {
                let id = format!("{}-instructions-{}", operation.name(), engine.name);
                series(&id, "instructions", "workers", points);
            }
            series(&format!("{}-ratio", operation.name()), "times the best of the others", "workers", &ratios);
        }
    }
    Ok(())
}

fn time() -> Result<(), String> {
    for operation in [Operation::Yield, Operation::Wake, Operation::Join] {
        for engine in ENGINES {
            let mut points = Vec::new();
            for workers in (1..=WORKERS).filter(|workers| engine.offers(operation, *workers)) {
                // Each run in a process of its own, the middle of three.
                let mut times = [0; 3];
                for time in &mut times {
                    *time = timed(engine, operation, workers)?;
                }
                times.sort_unstable();
                points.push((workers, times[1] as f64 / TIMED as f64));
            }
            if !points.is_empty() {
                series(&format!("{}-{}", operation.name(), engine.name), "ns", "workers", &points);
            }
        }
    }
    Ok(())
}

/// Returns the nanoseconds of a run, without those of an empty one.
fn timed(engine: &Engine, operation: Operation, workers: usize) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find myself: {error}"))?;
    let run = |count: u64| {
        let begin = Instant::now();
        let status = Command::new(&program)
            .args(["run", engine.name, operation.name(), &count.to_string(), &workers.to_string()])
            .status()
            .map_err(|error| format!("cannot run myself: {error}"))?;
        if status.success() {
            Ok(begin.elapsed().as_nanos() as u64)
        } else {
            Err(format!("{} {} failed", engine.name, operation.name()))
        }
    };
    // A count is for each of the coroutines, of which there are two for each worker.
    let count = TIMED / operation.times_each() / workers as u64;
    Ok(run(count)?.saturating_sub(run(1)?))
}

fn figure(id: &str, value: f64, unit: &str) {
    println!(r#"bench: {{"id": "{id}", "value": {value:.2}, "unit": "{unit}"}}"#);
}

fn series(id: &str, unit: &str, x_unit: &str, points: &[(usize, f64)]) {
    let points: Vec<String> = points.iter().map(|(x, y)| format!("[{x}, {y:.2}]")).collect();
    println!(
        r#"bench: {{"series": "{id}", "unit": "{unit}", "x_unit": "{x_unit}", "points": [{}]}}"#,
        points.join(", ")
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read_from_callgrinds_output() {
        assert_eq!(collected("==7== Events    : Ir\n==7== Collected : 223147\n==7== \n"), Some(223_147));
        assert_eq!(collected("==7== Collected : many"), None);
        assert_eq!(collected(""), None);
    }
}
