//! The jobs: each is small and complete, checks its results, and leaves no objects behind.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;

use cops::process::{Child, Command, Ending};
use cops::time::{Duration, Instant};

use crate::{Outcome, PORT};

/// Longest time for an activity of another process before it counts as a hang.
const PATIENCE: Duration = Duration::from_secs(120);

/// A job.
pub struct Job {
    /// Name of the job in messages.
    pub name: &'static str,
    body: fn(u64) -> Pin<Box<dyn Future<Output = Outcome> + Send>>,
}

impl Job {
    /// Does the job once. The number of the round varies it.
    pub async fn run(&self, round: u64) -> Outcome {
        (self.body)(round).await
    }
}

macro_rules! jobs {
    ($($function:ident)*) => {
        /// All jobs.
        pub const ALL: &[Job] = &[$(Job { name: stringify!($function), body: |round| Box::pin($function(round)) }),*];
    };
}

jobs! { processes killed_processes clients killed_clients random_calls pipes dropped_calls files memory sleeps }

/// Adds a place in words to an error, for use with `?`.
fn or<T, E: core::fmt::Debug>(result: Result<T, E>, what: &str) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error:?}"))
}

fn expect(condition: bool, what: &str) -> Outcome {
    if condition { Ok(()) } else { Err(what.into()) }
}

async fn ending(child: &Child) -> Result<Ending, String> {
    let ended = cops::timeout(PATIENCE, child.wait()).await;
    or(or(ended, "a process does not end")?, "a process cannot be waited for")
}

/// Processes that print and end.
async fn processes(_: u64) -> Outcome {
    let (reader, writer) = or(cops::io::pipe(), "pipe")?;
    let child = or(Command::new("/bin/hello").descriptor(1, writer.into_descriptor()).spawn(), "spawn")?;
    let mut said = Vec::new();
    loop {
        let (result, buffer) = reader.read(alloc::vec![0; 64]).await;
        match or(result, "the output of a process")? {
            0 => break,
            count => said.extend_from_slice(&buffer[..count]),
        }
    }
    expect(said == b"Hello, world!\n", "a process said something else")?;
    expect(ending(&child).await? == Ending::Exited(0), "a process ended with a failure")
}

/// Processes that are killed at different moments.
async fn killed_processes(_: u64) -> Outcome {
    let command = Command::new("/bin/hello").without_descriptor(1);
    let child = or(command.spawn(), "spawn")?;
    cops::sleep(Duration::from_micros(cops::random::quick() % 10_000)).await;
    // The process may have ended before.
    let _ = child.kill();
    ending(&child).await.map(|_| ())
}

fn client(round: u64) -> Result<Child, String> {
    let null = or(cops::file::File::open_with("/dev/null", abi_unix::types::open::WRONLY), "/dev/null")?;
    let command = Command::new("/bin/matrix-client")
        .descriptor(1, null.into_descriptor())
        .argument("--port")
        .argument(PORT)
        .argument("--connections")
        .argument(&format!("{}", 1 + round * 7 % 40))
        .argument("--order")
        .argument(&format!("{}", 1 + round * 5 % 24))
        .argument("--requests")
        .argument("20")
        .argument("--period-ms")
        .argument(if round.is_multiple_of(2) { "0" } else { "10" });
    or(command.spawn(), "spawn")
}

/// Clients of the matrix server, which check their answers.
async fn clients(round: u64) -> Outcome {
    let child = client(round)?;
    expect(ending(&child).await? == Ending::Exited(0), "a client of the matrix server had wrong or lost answers")
}

/// Clients that are killed in the middle.
async fn killed_clients(round: u64) -> Outcome {
    let child = client(round)?;
    cops::sleep(Duration::from_micros(cops::random::quick() % 100_000)).await;
    let _ = child.kill();
    ending(&child).await.map(|_| ())
}

/// A process that makes random calls.
async fn random_calls(round: u64) -> Outcome {
    let child = Command::new("/bin/fuzz").argument(&format!("{round}")).argument("5000").spawn();
    expect(ending(&or(child, "spawn")?).await? == Ending::Exited(0), "a process with random calls ended with a failure")
}

/// Bytes that go around a ring of pipes, passed on by each coroutine.
async fn pipes(round: u64) -> Outcome {
    const STATIONS: usize = 12;
    let length = [1, 100, 5000][round as usize % 3];
    let mut readers = Vec::new();
    let mut writers = Vec::new();
    for _ in 0..=STATIONS {
        let (reader, writer) = or(cops::io::pipe(), "pipe")?;
        readers.push(reader);
        writers.push(writer);
    }
    let first = writers.remove(0);
    let last = readers.pop().ok_or("no pipe")?;
    let stations: Vec<_> = readers
        .into_iter()
        .zip(writers)
        .map(|(reader, writer)| {
            cops::spawn(async move {
                loop {
                    let (result, buffer) = reader.read_exact(alloc::vec![0; length]).await;
                    if result.is_err() || writer.write_all(buffer).await.0.is_err() {
                        break;
                    }
                }
            })
        })
        .collect();
    for turn in 0..20u8 {
        or(first.write_all(alloc::vec![turn; length]).await.0, "writing to the ring")?;
        let (result, buffer) = last.read_exact(alloc::vec![0; length]).await;
        or(result, "reading from the ring")?;
        expect(buffer.iter().all(|byte| *byte == turn), "something else came out of the ring")?;
    }
    // The end goes around too.
    drop(first);
    for station in stations {
        or(station.await, "a station")?;
    }
    Ok(())
}

/// Calls that are dropped while they wait.
async fn dropped_calls(_: u64) -> Outcome {
    let (reader, writer) = or(cops::io::pipe(), "pipe")?;
    for _ in 0..20 {
        let limit = Duration::from_micros(cops::random::quick() % 500);
        let read = cops::timeout(limit, reader.read(alloc::vec![0; 1000])).await;
        expect(read.is_err(), "a read of an empty pipe came back")?;
    }
    or(writer.write_all(alloc::vec![7; 10]).await.0, "writing")?;
    let (result, buffer) = reader.read_exact(alloc::vec![0; 10]).await;
    or(result, "reading")?;
    expect(buffer == [7; 10], "dropped reads have taken something")
}

/// Files that are written, read back and removed.
async fn files(round: u64) -> Outcome {
    let path = format!("/tmp/soak-{round}");
    let contents: Vec<u8> = (0..40_000u64).map(|index| (index.wrapping_mul(round | 1) >> 3) as u8).collect();
    or(cops::file::write(&path, contents.clone()).await, "writing a file")?;
    expect(or(cops::file::read(&path).await, "reading a file")? == contents, "a file has changed")?;
    or(cops::file::remove(&path), "removing a file")
}

/// Memory that is zero at first, keeps its content, and is freed.
async fn memory(round: u64) -> Outcome {
    let words = 1000 + (round as usize * 7919) % 100_000;
    let mut block: Vec<u64> = alloc::vec![0; words];
    expect(block.iter().all(|word| *word == 0), "fresh memory is not zero")?;
    block.iter_mut().zip(round..).for_each(|(word, value)| *word = value);
    cops::yield_now().await;
    expect(block.iter().copied().eq(round..round + words as u64), "memory has changed")?;
    cops::sleep(Duration::from_millis(1)).await;
    Ok(())
}

/// Sleeps that do not end early.
async fn sleeps(_: u64) -> Outcome {
    let sleepers: Vec<_> = (0..50)
        .map(|_| {
            cops::spawn(async {
                let length = Duration::from_micros(cops::random::quick() % 30_000);
                let start = Instant::now();
                cops::sleep(length).await;
                start.elapsed() >= length
            })
        })
        .collect();
    for sleeper in sleepers {
        expect(or(sleeper.await, "a sleeper")?, "a sleep ended early")?;
    }
    Ok(())
}
