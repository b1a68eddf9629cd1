//! Everything at once, for long: `soak SECONDS`.
//!
//! Some faults need hours to show because they lose a little each time: a frame, a kernel coroutine, a connection, a
//! wake-up. So this program keeps the whole system busy with jobs that come and go (processes that end, processes that
//! are killed, clients of a matrix server, random system calls, pipes, files, memory, sleeps), each of which checks its
//! own results, and compares the kernel's counters at the end with those at the beginning. Meanwhile the server also
//! answers clients from outside; `cargo xtask soak` is one, and checks every answer.
//!
//! A quarter of the time, or more of a short one, passes before the first look at the counters, because tables and
//! heaps grow to the size of the busiest moment and keep it.
//!
//! The last line is `soak: as before after N jobs`, or the failure; the exit status is 0 only in the first case.
#![no_std]
#![no_main]

extern crate alloc;

mod jobs;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;
use core::sync::atomic::{AtomicU64, Ordering};

use abi_unix::Counter;
use cops::process::{Child, Command};
use cops::time::{Duration, Instant};
use cops::{eprintln, println};

/// The result of a job: the error is the failure.
type Outcome = Result<(), String>;

/// The matrix server's port.
const PORT: &str = "7000";
/// Frames that may be in use at the end beyond those at the beginning: user-space heaps and the kernel's tables keep
/// some. A frame lost in every job would be far more.
const KEPT_FRAMES: u64 = 1024;
/// Bytes of the kernel's heap that may be in use beyond those at the beginning.
const KEPT_BYTES: u64 = 256 * 1024;
/// Longest time for ended objects to be freed: connections from outside wait for the other side.
const SETTLING: Duration = Duration::from_secs(60);
/// Least time before the first look at the counters, unless it is more than half of the whole time.
const WARM_UP: Duration = Duration::from_secs(20);
/// Interval of messages.
const REPORT: Duration = Duration::from_secs(10);

static DONE: AtomicU64 = AtomicU64::new(0);

#[cops::main]
async fn main() -> i32 {
    let seconds = cops::arguments().nth(1).and_then(|text| text.to_str().ok()?.parse().ok());
    let (Some(seconds), None) = (seconds, cops::arguments().nth(2)) else {
        eprintln!("usage: soak SECONDS");
        return 2;
    };
    match soak(Duration::from_secs(seconds)).await {
        Ok(()) => {
            println!("soak: as before after {} jobs", DONE.load(Ordering::Relaxed));
            0
        }
        Err(reason) => {
            println!("soak: {reason}");
            1
        }
    }
}

async fn soak(length: Duration) -> Outcome {
    let _ = cops::alloc_cpu(2);
    let start = Instant::now();
    let server = serve().await?;
    // Tables and heaps grow to the size of the busiest moment, which a short time may not contain.
    busy(start, (length / 4).max(WARM_UP).min(length / 2)).await?;
    stop(server).await?;
    // Ended objects are freed within this time; if not, the comparison at the end shows it.
    cops::sleep(Duration::from_secs(1)).await;
    let before = Counters::read()?;

    let server = serve().await?;
    println!("soak: serving for {} s", length.saturating_sub(start.elapsed()).as_secs());
    busy(start, length).await?;
    // The client from outside has a clock of its own.
    wait_for(|| cops::system::system::counter(Counter::Connections).is_ok_and(|count| count == 0)).await;
    stop(server).await?;
    wait_for(|| Counters::read().is_ok_and(|now| before.difference(&now).is_none())).await;
    before.difference(&Counters::read()?).map_or(Ok(()), Err)
}

/// Runs all jobs at once until `length` after `start`.
async fn busy(start: Instant, length: Duration) -> Outcome {
    let all: Vec<_> = jobs::ALL.iter().map(|job| cops::spawn(repeat(job, start + length))).collect();
    let reports = cops::spawn(async move {
        loop {
            cops::sleep(REPORT).await;
            println!("soak: {} jobs in {} s", DONE.load(Ordering::Relaxed), start.elapsed().as_secs());
        }
    });
    let mut outcome = Ok(());
    for job in all {
        let ended = job.await.map_err(|_| String::from("a job was cancelled"));
        outcome = outcome.and(ended.and_then(|result| result));
    }
    reports.cancel();
    outcome
}

/// Waits until a condition holds, for a limited time.
async fn wait_for(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() && start.elapsed() < SETTLING {
        cops::sleep(Duration::from_millis(100)).await;
    }
}

/// Repeats a job, until the end of the time or a failure.
async fn repeat(job: &'static jobs::Job, end: Instant) -> Outcome {
    let mut round = 1;
    while Instant::now() < end {
        job.run(round).await.map_err(|reason| format!("{} in round {round}: {reason}", job.name))?;
        DONE.fetch_add(1, Ordering::Relaxed);
        round += 1;
    }
    Ok(())
}

/// Starts the server, and waits until it listens.
async fn serve() -> Result<Child, String> {
    let server = Command::new("/bin/matrix-server")
        .argument("--port")
        .argument(PORT)
        .argument("--workers")
        .argument("2")
        .spawn()
        .map_err(|error| format!("the matrix server does not start: {error}"))?;
    for _ in 0..1000 {
        cops::sleep(Duration::from_millis(10)).await;
        let address = core::net::SocketAddrV4::new(core::net::Ipv4Addr::LOCALHOST, 7000);
        if cops::net::TcpStream::connect(address).await.is_ok() {
            return Ok(server);
        }
    }
    Err("the matrix server does not listen".into())
}

async fn stop(server: Child) -> Outcome {
    server.kill().map_err(|error| format!("the matrix server ended before its time: {error}"))?;
    let ended = cops::timeout(Duration::from_secs(20), server.wait()).await;
    ended.map(|_| ()).map_err(|_| "the matrix server does not end".into())
}

/// The counters that must be as before.
struct Counters([u64; 6]);

impl Counters {
    /// Free frames, bytes of the kernel's heap, and numbers of objects, each with its tolerance.
    const COUNTED: [(Counter, u64); 6] = [
        (Counter::FramesFree, KEPT_FRAMES),
        (Counter::HeapBytes, KEPT_BYTES),
        (Counter::Processes, 0),
        (Counter::KernelCoroutines, 2),
        // The runtime's alarm and this program's own wait come and go.
        (Counter::CallsInFlight, 2),
        (Counter::Connections, 0),
    ];

    fn read() -> Result<Counters, String> {
        let mut values = [0; 6];
        for (value, (counter, _)) in values.iter_mut().zip(Counters::COUNTED) {
            *value = cops::system::system::counter(counter).map_err(|error| format!("no counters: {error}"))?;
        }
        Ok(Counters(values))
    }

    /// Returns the differences, in words; `None` if there are none.
    fn difference(&self, now: &Counters) -> Option<String> {
        let mut is_back = true;
        let mut words = String::new();
        for ((counter, kept), (&before, now)) in Counters::COUNTED.iter().zip(self.0.iter().zip(now.0)) {
            let grown = match counter {
                // The only counter that falls.
                Counter::FramesFree => before.saturating_sub(now),
                _ => now.saturating_sub(before),
            };
            is_back &= grown <= *kept;
            let _ = write!(words, " {} {before}/{now}", counter.name());
        }
        (!is_back).then(|| format!("not as before (before/after):{words}"))
    }
}
