//! The ring experiments: tasks that take turns.
//!
//! *Experiment A*: `n` coroutines, numbered from 1, share a counter; each waits until the counter is its number and
//! then increments it. `coroutine-yield` looks again at each of its turns, as the papers' coroutines do;
//! `coroutine-wake` is woken by its predecessor.
//!
//! *Experiment B*: `n` coroutines and `n + 1` pipes; each reads from the pipe before it and writes to the one behind
//! it. `coroutine` has them all at one priority; with `coroutine-priority` the first ones are more important, as in the
//! papers.
//!
//! Both also with threads: `thread-wait` blocks, at a word of its own or in `read`; `thread-yield` tries again after a
//! yield, as the papers' threads do.
//!
//! The time runs from before the first task is made to after the last one has ended, as in the papers.

use alloc::string::String;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::task::Poll;

use abi_unix::types::open;
use cops::io::pipe;
use cops::system::thread::{futex_wait, futex_wake};
use cops::system::{Descriptor, file};
use cops::thread::{self, Builder};
use cops::{Cid, Errno, Priority, println, spawn, spawn_at, yield_now};

use crate::{Outcome, argument, attempt, now, series};

/// Bytes of a thread's stack, as in the program for Linux.
const STACK: usize = 64 << 10;

/// Levels of priority that a ring with priorities uses.
const LEVELS: usize = 8;

/// Returns the counts of tasks in the command line's arguments from `first` on.
fn counts(first: usize) -> Result<Vec<usize>, String> {
    cops::arguments().skip(first).map(|text| Ok(attempt!(attempt!(text.to_str()).parse::<usize>()))).collect()
}

/// Returns the number of measurements of a ring of this size; the median counts. As in the program for Linux.
fn repetitions(count: usize) -> usize {
    match count {
        0..=100 => 5,
        101..=1000 => 3,
        _ => 1,
    }
}

/// Returns whether a ring of the next size would exceed the limit, extrapolated from the last one.
fn is_too_long(variant: &str, last: Option<&(f64, f64)>, count: usize, limit_ns: f64) -> bool {
    let Some((size, time)) = last else { return false };
    let growth = count as f64 / size;
    // A task that tries again does so at each turn of each other task.
    time * if variant == "thread-yield" { growth * growth } else { growth } > limit_ns
}

/// `ring-counter VARIANTS LIMIT_MS TASKS...`: variants are separated by commas; sizes that would take longer than the
/// limit are left out.
pub async fn counter() -> Outcome {
    let limit_ns = attempt!(argument(3)?.parse::<f64>()) * 1e6;
    for variant in argument(2)?.split(',') {
        measure(variant, counts(4)?, limit_ns, |count| counting(variant, count)).await;
    }
    Ok(())
}

/// Measures one variant at all sizes up to the limit, and reports it.
async fn measure<F: Future<Output = Result<u64, String>>>(
    variant: &str,
    counts: Vec<usize>,
    limit_ns: f64,
    run: impl Fn(usize) -> F,
) {
    let mut points = Vec::new();
    let mut outcome = Ok(());
    // The first run touches the memory of the others.
    'sizes: for (index, count) in [1].into_iter().chain(counts).enumerate() {
        if is_too_long(variant, points.last(), count, limit_ns) {
            break;
        }
        let mut times = Vec::new();
        for _ in 0..repetitions(count) {
            match run(count).await {
                Ok(time) => times.push(time),
                Err(error) => {
                    outcome = Err(error);
                    break 'sizes;
                }
            }
        }
        times.sort_unstable();
        if index > 0 {
            points.push((count as f64, times[times.len() / 2] as f64));
        }
    }
    report(variant, outcome, &points);
}

/// Reports the results, and the reason if there are no more.
fn report(id: &str, outcome: Outcome, points: &[(f64, f64)]) {
    if let Err(error) = outcome {
        println!("bench failed: {id}: {}", error.lines().last().unwrap_or_default());
    }
    if !points.is_empty() {
        series(id, "ns", "tasks", points);
    }
}

async fn counting(variant: &str, count: usize) -> Result<u64, String> {
    static COUNTER: AtomicUsize = AtomicUsize::new(0);
    COUNTER.store(0, Ordering::Relaxed);
    let start = now();
    if variant.starts_with("thread") {
        counting_threads(variant == "thread-wait", count, &COUNTER)?;
        return finished(now() - start, &COUNTER, count);
    }
    let mut handles = Vec::with_capacity(count);
    match variant {
        "coroutine-yield" => {
            for number in 1..=count {
                handles.push(spawn(async move {
                    while COUNTER.load(Ordering::Relaxed) != number {
                        yield_now().await;
                    }
                    COUNTER.store(number + 1, Ordering::Relaxed);
                }));
            }
            COUNTER.store(1, Ordering::Relaxed);
        }
        "coroutine-wake" => {
            // Leaked; this program measures and ends.
            let cids: &'static [AtomicU64] = (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak();
            for (index, next) in cids.iter().cycle().skip(1).take(count).enumerate() {
                let number = index + 1;
                handles.push(spawn(poll_fn(move |_| {
                    if COUNTER.load(Ordering::Relaxed) != number {
                        return Poll::Pending;
                    }
                    COUNTER.store(number + 1, Ordering::Relaxed);
                    if number < count {
                        let _ = cops::wake(Cid::from_raw(next.load(Ordering::Relaxed)));
                    }
                    Poll::Ready(())
                })));
            }
            for (cid, handle) in cids.iter().zip(&handles) {
                cid.store(handle.cid().raw(), Ordering::Relaxed);
            }
            COUNTER.store(1, Ordering::Relaxed);
            if let Some(first) = handles.first() {
                let _ = cops::wake(first.cid());
            }
        }
        _ => return Err(alloc::format!("no variant {variant}")),
    }
    for handle in handles {
        attempt!(handle.await);
    }
    finished(now() - start, &COUNTER, count)
}

/// Returns the time, if all have counted.
fn finished(time: u64, counter: &AtomicUsize, count: usize) -> Result<u64, String> {
    if counter.load(Ordering::Relaxed) != count + 1 {
        return Err("the counter is wrong".into());
    }
    Ok(time)
}

/// Runs threads that count: each waits for a word of its own to become 1, or tries again.
fn counting_threads(waits: bool, count: usize, counter: &'static AtomicUsize) -> Outcome {
    // Leaked; this program measures and ends.
    let turns: &'static [AtomicU32] = (0..=count).map(|_| AtomicU32::new(0)).collect::<Vec<_>>().leak();
    let pass_to = move |number: usize| {
        if number <= count {
            turns[number].store(1, Ordering::Release);
            futex_wake(&turns[number], 1);
        }
    };
    let mut threads = Vec::with_capacity(count);
    for (number, turn) in turns.iter().enumerate().skip(1) {
        threads.push(attempt!(Builder::new().stack_size(STACK).spawn(move || {
            if waits {
                while turn.load(Ordering::Acquire) == 0 {
                    let _ = futex_wait(turn, 0, None);
                }
            } else {
                while counter.load(Ordering::Acquire) != number {
                    thread::yield_now();
                }
            }
            counter.store(number + 1, Ordering::Release);
            if waits {
                pass_to(number + 1);
            }
        })));
    }
    counter.store(1, Ordering::Release);
    if waits {
        pass_to(1);
    }
    for thread in threads {
        thread.join();
    }
    Ok(())
}

/// `ring-pipes VARIANTS BYTES LIMIT_MS TASKS...`
pub async fn pipes() -> Outcome {
    let bytes = attempt!(argument(3)?.parse::<usize>());
    let limit_ns = attempt!(argument(4)?.parse::<f64>()) * 1e6;
    for variant in argument(2)?.split(',') {
        measure(variant, counts(5)?, limit_ns, |count| passing(variant, bytes, count)).await;
    }
    Ok(())
}

async fn passing(variant: &str, bytes: usize, count: usize) -> Result<u64, String> {
    if variant.starts_with("thread") {
        return passing_threads(variant == "thread-wait", bytes, count);
    }
    let with_priorities = match variant {
        "coroutine" => false,
        "coroutine-priority" => true,
        _ => return Err(alloc::format!("no variant {variant}")),
    };
    let start = now();
    let (mut reader, first) = attempt!(pipe());
    let mut handles = Vec::with_capacity(count);
    for index in 0..count {
        let (next, writer) = attempt!(pipe());
        let from = core::mem::replace(&mut reader, next);
        let task = async move {
            let (read, message) = from.read_exact(alloc::vec![0u8; bytes]).await;
            attempt!(read);
            attempt!(writer.write_all(message).await.0);
            Ok(())
        };
        let priority = Priority::saturating((index * LEVELS / count) as u64);
        handles.push(if with_priorities { spawn_at(priority, task) } else { spawn(task) });
    }
    attempt!(first.write_all(alloc::vec![b'x'; bytes]).await.0);
    let (read, message) = reader.read_exact(alloc::vec![0u8; bytes]).await;
    attempt!(read);
    for handle in handles {
        attempt!(handle.await)?;
    }
    drop((reader, first));
    let time = now() - start;
    if message.len() != bytes || message.iter().any(|byte| *byte != b'x') {
        return Err("the message has changed".into());
    }
    Ok(time)
}

/// Runs threads that pass the message on, which read and write synchronously.
fn passing_threads(waits: bool, bytes: usize, count: usize) -> Result<u64, String> {
    let read_message = move |descriptor: &Descriptor, message: &mut [u8]| -> Result<(), Errno> {
        let mut have = 0;
        while have < message.len() {
            match file::read(descriptor.raw(), &mut message[have..]) {
                Ok(count) => have += count,
                Err(Errno::EAGAIN) if !waits => thread::yield_now(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    };
    let flags = if waits { 0 } else { open::NONBLOCK };
    let start = now();
    let (mut reader, first) = attempt!(file::pipe(flags));
    let mut threads = Vec::with_capacity(count);
    for _ in 0..count {
        let (next, writer) = attempt!(file::pipe(flags));
        let from = core::mem::replace(&mut reader, next);
        threads.push(attempt!(Builder::new().stack_size(STACK).spawn(move || {
            let mut message = [0; 4096];
            read_message(&from, &mut message[..bytes])?;
            file::write_all(writer.raw(), &message[..bytes])
        })));
    }
    attempt!(file::write_all(first.raw(), &alloc::vec![b'x'; bytes]));
    let mut message = alloc::vec![0; bytes];
    attempt!(read_message(&reader, &mut message));
    for thread in threads {
        attempt!(thread.join());
    }
    drop((reader, first));
    let time = now() - start;
    if message.iter().any(|byte| *byte != b'x') {
        return Err("the message has changed".into());
    }
    Ok(time)
}
