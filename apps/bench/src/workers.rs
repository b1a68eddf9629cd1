//! One job on a number of workers: `workers WORKERS COROUTINES TURNS STEPS`.
//!
//! Each of the coroutines computes for a number of steps, yields, and does so again for a number of turns, so that the
//! workers meet in the executor once for each turn. The program ends then; another number of workers is another process,
//! because workers stay. `workers all …` starts one process for each number and reports the series.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::hint::black_box;
use core::sync::atomic::{AtomicU32, Ordering};

use cops::process::Command;
use cops::{println, spawn, yield_now};

use crate::{Outcome, argument, attempt, now, series};

/// The most workers that are tried.
const WORKERS: usize = 8;

pub async fn measure() -> Outcome {
    let number = |place: usize| -> Result<usize, String> { Ok(attempt!(argument(place)?.parse::<usize>())) };
    let (coroutines, turns, steps) = (number(3)?, number(4)?, number(5)?);
    if argument(2)? != "all" {
        let time = job(number(2)?, coroutines, turns, steps).await?;
        println!("{time}");
        return Ok(());
    }
    let mut points = Vec::new();
    for workers in 1..=WORKERS {
        let (reader, writer) = attempt!(cops::io::pipe());
        let mut command = Command::new("/bin/bench").argument("workers");
        for argument in [workers, coroutines, turns, steps] {
            command = command.argument(&argument.to_string());
        }
        let child = attempt!(command.descriptor(1, writer.into_descriptor()).spawn());
        let mut text = Vec::new();
        loop {
            let (result, part) = reader.read(alloc::vec![0; 100]).await;
            match attempt!(result) {
                0 => break,
                count => text.extend_from_slice(&part[..count]),
            }
        }
        attempt!(child.wait().await);
        let time = attempt!(attempt!(core::str::from_utf8(&text)).trim().parse::<u64>());
        points.push((workers as f64, time as f64));
    }
    series("coroutine", "ns", "workers", &points);
    Ok(())
}

async fn job(workers: usize, coroutines: usize, turns: usize, steps: usize) -> Result<u64, String> {
    attempt!(cops::alloc_cpu(workers.saturating_sub(1)));
    static SUM: AtomicU32 = AtomicU32::new(0);
    let start = now();
    let handles: Vec<_> = (0..coroutines)
        .map(|number| {
            spawn(async move {
                let mut value = number as u32;
                for _ in 0..turns {
                    for _ in 0..steps {
                        value = black_box(value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
                    }
                    yield_now().await;
                }
                SUM.fetch_add(value | 1, Ordering::Relaxed);
            })
        })
        .collect();
    for handle in handles {
        attempt!(handle.await);
    }
    Ok(now() - start)
}
