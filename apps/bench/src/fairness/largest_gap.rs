//! A process that is always ready, though unimportant, beside one with 4,000 threads that never rest: its longest time
//! without a turn.

use alloc::sync::Arc;
use alloc::vec;
use core::sync::atomic::{AtomicU32, Ordering};

use cops::io::pipe;
use cops::system;
use cops::thread::Builder;
use cops::{Errno, Priority};

use crate::{Outcome, attempt, figure, now};

use super::{accomplice, end};

const THREADS: usize = 4000;
/// Duration of the measurement.
const WATCHED_NS: u64 = 5_000_000_000;
/// The victim's priority.
const VICTIM: Priority = Priority::saturating(40);

pub async fn measure() -> Outcome {
    let (reader, writer) = attempt!(pipe());
    let attacker = accomplice("largest_gap").descriptor(1, writer.into_descriptor()).priority(Priority::HIGHEST);
    let attacker = attempt!(attacker.spawn());
    // The attacker answers when all its threads exist, before it lets them run.
    let (count, _) = reader.read(vec![0; 1]).await;
    if attempt!(count) != 1 {
        return Err("the attacker could not start its threads".into());
    }
    attempt!(cops::set_priority(cops::current(), VICTIM));
    cops::yield_now().await;
    let harts = cops::time::global_page().map_or(1, |page| page.harts.load(Ordering::Relaxed));
    let start = now();
    let (mut last, mut largest, mut had) = (start, 0, 0);
    while last - start < WATCHED_NS {
        let time = now();
        // A shorter gap between two looks at the clock is running time.
        if time - last < 10_000 {
            had += time - last;
        }
        largest = largest.max(time - last);
        last = time;
    }
    attempt!(cops::set_priority(cops::current(), Priority::HIGHEST));
    cops::yield_now().await;
    end(attacker).await?;
    figure(&alloc::format!("largest_gap_ms_{harts}"), largest as f64 / 1e6, "ms");
    figure(&alloc::format!("victim_percent_{harts}"), had as f64 / (last - start) as f64 * 100.0, "percent of a hart");
    Ok(())
}

/// Starts the threads, reports that, and lets them run.
pub async fn act() -> Outcome {
    let go = Arc::new(AtomicU32::new(0));
    for _ in 0..THREADS {
        let go = go.clone();
        let thread = Builder::new().stack_size(4096).spawn(move || {
            while go.load(Ordering::Acquire) == 0 {
                let _ = system::thread::futex_wait(&go, 0, None);
            }
            loop {
                core::hint::spin_loop();
            }
        });
        drop(attempt!(thread));
    }
    match system::file::write(1, b"!") {
        Ok(_) => {}
        Err(Errno::EPIPE) => return Ok(()),
        Err(error) => return Err(alloc::format!("the victim has gone: {error}")),
    }
    go.store(1, Ordering::Release);
    system::thread::futex_wake(&go, u32::MAX >> 1);
    loop {
        core::hint::spin_loop();
    }
}
