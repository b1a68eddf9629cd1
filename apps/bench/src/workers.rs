//! One job on a number of workers: `workers WORKERS COROUTINES TURNS STEPS`.
//!
//! Each of the coroutines computes for a number of steps, yields, and does so again for a number of turns, so that the
//! workers meet in the executor once for each turn. The program ends then; another number of workers is another
//! process, because workers stay. `workers all …` starts one process for each number and reports the series: the time,
//! and from the scheduler's own counters the contention of the workers, and the number of coroutines that they stole
//! from each other.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::hint::black_box;
use core::sync::atomic::{AtomicU32, Ordering};

use cops::process::Command;
use cops::time::Duration;
use cops::{Counters, println, spawn, yield_now};

use crate::{Outcome, argument, attempt, now, series};

/// Other counts beside the time, in the order of the line that a process with workers prints after time and polls.
const COUNTED: [&str; 3] = ["steals", "lock-spins", "atomic-retries"];

/// Largest number of workers.
const WORKERS: usize = 8;

pub async fn measure() -> Outcome {
    let number = |place: usize| -> Result<usize, String> { Ok(attempt!(argument(place)?.parse::<usize>())) };
    let (coroutines, turns, steps) = (number(3)?, number(4)?, number(5)?);
    if argument(2)? != "all" {
        let time = job(number(2)?, coroutines, turns, steps).await?;
        // Workers count their polls when no coroutine is ready any more.
        cops::sleep(Duration::from_millis(10)).await;
        let Counters { polls, steals, spins, retries, .. } = counted();
        println!("{time} {polls} {steals} {spins} {retries}");
        return Ok(());
    }
    let mut points = Vec::new();
    let mut counts: [Vec<(f64, f64)>; COUNTED.len()] = Default::default();
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
        let mut numbers = Vec::new();
        for number in attempt!(core::str::from_utf8(&text)).split_whitespace() {
            numbers.push(attempt!(number.parse::<f64>()));
        }
        let [time, polls, counted @ ..] = numbers.as_slice() else {
            return Err("the process with the workers did not report its counters".into());
        };
        points.push((workers as f64, *time));
        for (points, count) in counts.iter_mut().zip(counted) {
            points.push((workers as f64, count / polls * 1000.0));
        }
    }
    series("coroutine", "ns", "workers", &points);
    for (name, points) in COUNTED.into_iter().zip(counts) {
        series(name, "for 1,000 polls", "workers", &points);
    }
    Ok(())
}

/// Returns the sum of all shards' counters.
fn counted() -> Counters {
    (0..WORKERS).map(|worker| cops::executor().counters(worker)).fold(Counters::default(), |sum, one| Counters {
        polls: sum.polls + one.polls,
        wakes: sum.wakes + one.wakes,
        steals: sum.steals + one.steals,
        spins: sum.spins + one.spins,
        retries: sum.retries + one.retries,
    })
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
