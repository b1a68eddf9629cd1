//! Starts a program and reports over TCP about the system: the other end of `cargo xtask trace` and `top`.
//!
//! `monitor trace PROGRAM [ARGUMENT]…` sends the records of the scheduling trace; the kernel has to be started with
//! `trace=RECORDS`. `monitor top PROGRAM [ARGUMENT]…` sends snapshots of harts and processes. Either waits for one
//! connection on [`PORT`], then starts the program, and ends when the program or the connection does.
//! `monitor latencies PROGRAM [ARGUMENT]…` starts the program at once and sends each client that connects the latencies
//! of requests up to then; the kernel has to be started with `latencies=on`. All data are `u64` words, little-endian,
//! as `abi_unix::trace` defines them.
#![no_std]
#![no_main]

extern crate alloc;

use core::future::Future;
use core::net::{Ipv4Addr, SocketAddrV4};
use core::pin::{Pin, pin};
use core::sync::atomic::Ordering;

use abi_queue::{GlobalPage, PRIORITIES};
use abi_unix::Counter;
use abi_unix::trace::{HART_WORDS, LATENCY_MAGIC, LATENCY_WORDS, PROCESS_WORDS, SNAPSHOT_MAGIC, STREAM_MAGIC};
use alloc::vec::Vec;
use cops::net::{Shutdown, TcpListener, TcpStream};
use cops::process::{Command, Ending};
use cops::system;
use cops::time::Duration;
use cops::{Errno, println};

/// Port for the tool.
const PORT: u16 = 7777;
/// Pause before a look for new records.
const PAUSE: Duration = Duration::from_millis(10);
/// Interval of snapshots.
const INTERVAL: Duration = Duration::from_millis(500);
/// Bytes of records that are sent at once.
const CHUNK: usize = 64 * 1024;
/// Largest number of harts.
const HARTS: usize = 8;

// More important than the watched program, or it would be late; its own work is small.
#[cops::main(priority = 1)]
async fn main() -> Result<i32, Errno> {
    let arguments: Vec<&str> = cops::arguments().skip(1).map(|text| text.to_str().unwrap_or("?")).collect();
    let [what @ ("trace" | "top" | "latencies"), program, arguments @ ..] = &arguments[..] else {
        cops::eprintln!("usage: monitor trace|top|latencies PROGRAM [ARGUMENT]...");
        return Ok(2);
    };
    let listener = TcpListener::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, PORT))?;
    println!("monitor: listening on port {PORT}");
    let stream = match *what {
        "latencies" => None,
        _ => Some(listener.accept().await?.0),
    };
    let path = if program.starts_with('/') { (*program).into() } else { alloc::format!("/bin/{program}") };
    let mut command = Command::new(&path).priority(cops::Priority::DEFAULT);
    for argument in arguments {
        command = command.argument(argument);
    }
    if *what == "trace" {
        command = command.variable("COPS_TRACE=1");
    }
    let child = command.spawn()?;
    let Some(stream) = stream else {
        cops::spawn(tell_latencies(listener)).detach();
        let ending = child.wait().await?;
        println!("monitor: the program has ended: {ending:?}");
        return Ok(0);
    };
    drop(listener);
    let end = pin!(child.wait());
    let watched = if *what == "trace" { trace(&stream, end).await } else { top(&stream, end).await };
    let _ = stream.shutdown(Shutdown::Both);
    match watched {
        Ok(Ending::Exited(0)) => println!("monitor: the program has ended"),
        Ok(ending) => println!("monitor: the program has ended: {ending:?}"),
        Err(error) => println!("monitor: the connection has ended: {error}"),
    }
    Ok(0)
}

/// Reads a word of the global page.
fn global(word: impl Fn(&GlobalPage) -> u64) -> u64 {
    cops::time::global_page().map_or(0, word)
}

async fn send(stream: &TcpStream, words: &[u64]) -> Result<(), Errno> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    stream.write_all(bytes).await.0
}

/// Waits for the program's end, for this time at most. The future of the end stays: dropping it may lose the status.
async fn ended(
    end: Pin<&mut impl Future<Output = Result<Ending, Errno>>>,
    wait: Duration,
) -> Result<Option<Ending>, Errno> {
    match cops::timeout(wait, end).await {
        Ok(ending) => ending.map(Some),
        Err(_) => Ok(None),
    }
}

/// Sends the latencies of requests over each connection.
async fn tell_latencies(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        let told = match latencies() {
            Ok(words) => send(&stream, &words).await,
            Err(error) => Err(error),
        };
        if let Err(error) = told {
            println!("monitor: latencies: {error}");
        }
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Returns the latencies of all priorities.
fn latencies() -> Result<Vec<u64>, Errno> {
    let ticks = global(|page| page.ticks_per_second.load(Ordering::Relaxed));
    let mut words = alloc::vec![LATENCY_MAGIC, ticks, PRIORITIES as u64];
    let mut level = [0; LATENCY_WORDS];
    for priority in 0..PRIORITIES {
        system::trace::latencies(priority as u32, &mut level)?;
        words.extend(level);
    }
    Ok(words)
}

/// Sends the trace until the program ends.
async fn trace(
    stream: &TcpStream,
    mut end: Pin<&mut impl Future<Output = Result<Ending, Errno>>>,
) -> Result<Ending, Errno> {
    let ticks = global(|page| page.ticks_per_second.load(Ordering::Relaxed));
    let harts = global(|page| page.harts.load(Ordering::Relaxed));
    send(stream, &[STREAM_MAGIC, ticks, harts, 0]).await?;
    let mut buffer = alloc::vec![0; CHUNK];
    let mut ending = None;
    loop {
        buffer.resize(CHUNK, 0);
        let length = system::trace::read(&mut buffer)?;
        if length > 0 {
            buffer.truncate(length);
            let (written, returned) = stream.write_all(buffer).await;
            buffer = returned;
            written?;
        }
        // After the end one more look, for later records. This program's own activity is recorded too, so the ring is
        // never found empty.
        if let Some(ending) = ending {
            return Ok(ending);
        }
        if length < CHUNK / 2 {
            ending = ended(end.as_mut(), PAUSE).await?;
        }
    }
}

/// Sends snapshots until the program ends.
async fn top(
    stream: &TcpStream,
    mut end: Pin<&mut impl Future<Output = Result<Ending, Errno>>>,
) -> Result<Ending, Errno> {
    loop {
        let mut harts = [[0; HART_WORDS]; HARTS];
        let count = system::trace::harts(&mut harts)?;
        let mut processes: Vec<[u64; PROCESS_WORDS]> = Vec::new();
        loop {
            let above = processes.last().map_or(0, |words| words[0] as u32);
            let mut some = [[0; PROCESS_WORDS]; 16];
            let count = system::trace::processes(above, &mut some)?;
            processes.extend(&some[..count]);
            if count < some.len() {
                break;
            }
        }
        let counters = system::system::counters()?;
        let mut words = alloc::vec![
            SNAPSHOT_MAGIC,
            cops::time::now_ns(),
            count as u64,
            processes.len() as u64,
            global(|page| page.ready.load(Ordering::Relaxed)),
            counters[Counter::CallsInFlight as usize],
            counters[Counter::FramesFree as usize],
            0,
        ];
        words.extend(harts[..count].iter().flatten());
        words.extend(processes.iter().flatten());
        send(stream, &words).await?;
        if let Some(ending) = ended(end.as_mut(), INTERVAL).await? {
            return Ok(ending);
        }
    }
}
