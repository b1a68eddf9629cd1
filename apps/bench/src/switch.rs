//! Yield, wake and spawn, through the shared scheduler, with few and with very many coroutines.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::task::{Context, Poll};

use cops::{Cid, yield_now};

use crate::{Outcome, figure, now, repetitions, series};

/// Numbers of coroutines; those above half of the operations are left out.
const COUNTS: [usize; 6] = [1, 10, 100, 1000, 10_000, 100_000];
/// Least number of measured operations, where time is cheap.
const OPERATIONS: usize = 200_000;
/// The count whose value is the figure.
const FIGURE: usize = 1000;

pub async fn measure() -> Outcome {
    let mut yields = Vec::new();
    let mut wakes = Vec::new();
    let mut spawns = Vec::new();
    let operations = repetitions(OPERATIONS);
    for count in COUNTS.into_iter().filter(|count| *count <= (operations / 2).max(1)) {
        let turns = (operations / count).max(4);
        // The first run touches the memory that the second one uses.
        yielding(count, 1).await;
        let few = yielding(count, 2).await;
        let many = yielding(count, 2 + turns).await;
        put(&mut yields, "yield", count, per(many - few, count * turns));

        // A ring needs two.
        let ring = count.max(2);
        waking(ring, 1).await;
        let few = waking(ring, 1).await;
        let many = waking(ring, 1 + turns).await;
        put(&mut wakes, "wake", ring, per(many - few, ring * turns));

        // Twice as many in as many batches: the other costs of a batch cancel out.
        let batches = (operations / count).max(2);
        spawning(2 * count, 1).await;
        let few = spawning(count, batches).await;
        let many = spawning(2 * count, batches).await;
        put(&mut spawns, "spawn", count, per(many - few, count * batches));
    }
    for (id, points) in [("yield", yields), ("wake", wakes), ("spawn", spawns)] {
        let value = points.iter().find(|(count, _)| *count as usize == FIGURE).map_or(0.0, |point| point.1);
        figure(id, value, "instructions");
        series(id, "instructions", "coroutines", &points);
    }
    Ok(())
}

/// Adds a point to a series. Where repetitions are few because the machine is slow, its profile needs a line for each
/// measurement, so the point is a figure, too.
fn put(points: &mut Vec<(f64, f64)>, id: &str, count: usize, value: f64) {
    if repetitions(OPERATIONS) < OPERATIONS {
        figure(&alloc::format!("{id}-{count}"), value, "instructions");
    }
    points.push((count as f64, value));
}

fn per(total: u64, count: usize) -> f64 {
    total as f64 / count as f64
}

/// Returns the time in which `count` coroutines yield `turns` times each.
async fn yielding(count: usize, turns: usize) -> u64 {
    let handles: Vec<_> = (0..count)
        .map(|_| {
            cops::spawn(async move {
                for _ in 0..turns {
                    yield_now().await;
                }
            })
        })
        .collect();
    let start = now();
    for handle in handles {
        let _ = handle.await;
    }
    now() - start
}

/// A member of a ring of coroutines: woken, it wakes the next.
struct Member {
    /// Cid of the next; 0 until all have had the poll that comes with the spawn.
    next: &'static AtomicU64,
    polls_left: usize,
}

impl Future for Member {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        let _ = cops::wake(Cid::from_raw(self.next.load(Ordering::Relaxed)));
        self.polls_left -= 1;
        if self.polls_left == 0 { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Returns the time in which a wake-up goes round a ring of `count` coroutines `rounds` times.
async fn waking(count: usize, rounds: usize) -> u64 {
    // Leaked; this program measures and ends.
    let cids: &'static [AtomicU64] = (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak();
    let handles: Vec<_> = (0..count)
        .map(|index| cops::spawn(Member { next: &cids[(index + 1) % count], polls_left: rounds + 2 }))
        .collect();
    yield_now().await;
    for (cid, handle) in cids.iter().zip(&handles) {
        cid.store(handle.cid().raw(), Ordering::Relaxed);
    }
    let start = now();
    let _ = cops::wake(handles[0].cid());
    for handle in handles {
        let _ = handle.await;
    }
    now() - start
}

/// Returns the time in which `batches` times `count` coroutines are made, run and ended.
async fn spawning(count: usize, batches: usize) -> u64 {
    let finished = Arc::new(AtomicUsize::new(0));
    let start = now();
    let mut expected = 0;
    for _ in 0..batches {
        for _ in 0..count {
            let finished = finished.clone();
            cops::spawn(async move {
                finished.fetch_add(1, Ordering::Relaxed);
            })
            .detach();
        }
        expected += count;
        while finished.load(Ordering::Relaxed) < expected {
            yield_now().await;
        }
    }
    now() - start
}
