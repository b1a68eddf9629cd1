//! An exercise of tokio for unmodified programs: tasks, channels, locks, time, files, processes, signals and sockets,
//! on several threads. Each step prints a line that is the same on every system.

#![forbid(unsafe_code)]

use std::error::Error;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixListener, UnixStream};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Barrier, Mutex, Notify, RwLock, Semaphore, broadcast, mpsc, oneshot, watch};
use tokio::task::{JoinSet, spawn_blocking, yield_now};
use tokio::time::{Instant, interval, sleep, timeout};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

#[tokio::main(flavor = "multi_thread", worker_threads = 4)]
async fn main() -> Outcome {
    tasks().await?;
    channels().await?;
    locks().await?;
    time().await?;
    files().await?;
    processes().await?;
    signals().await?;
    tcp().await?;
    datagrams().await?;
    local_sockets().await?;
    println!("all done");
    Ok(())
}

/// Thousands of tasks, tasks that are aborted and that panic, and work that blocks.
async fn tasks() -> Outcome {
    let sum = Arc::new(AtomicU64::new(0));
    let mut set = JoinSet::new();
    for number in 0..5000 {
        let sum = sum.clone();
        set.spawn(async move {
            yield_now().await;
            sum.fetch_add(number, Ordering::Relaxed);
        });
    }
    while let Some(ended) = set.join_next().await {
        ended?;
    }
    println!("tasks: {}", sum.load(Ordering::Relaxed));
    let endless = tokio::spawn(std::future::pending::<()>());
    endless.abort();
    println!("aborted: {}", endless.await.is_err_and(|error| error.is_cancelled()));
    let blocking: Vec<_> = (0..32u64).map(|number| spawn_blocking(move || (0..=number).sum::<u64>())).collect();
    let mut total = 0;
    for handle in blocking {
        total += handle.await?;
    }
    println!("blocking: {total}");
    Ok(())
}

async fn channels() -> Outcome {
    let (sender, mut receiver) = mpsc::channel(4);
    for producer in 0..8u64 {
        let sender = sender.clone();
        tokio::spawn(async move {
            for number in 0..500 {
                if sender.send(producer * number).await.is_err() {
                    break;
                }
            }
        });
    }
    drop(sender);
    let (mut count, mut sum) = (0, 0);
    while let Some(number) = receiver.recv().await {
        count += 1;
        sum += number;
    }
    println!("mpsc: {count} {sum}");
    let (answer, question) = oneshot::channel();
    tokio::spawn(async move { answer.send("answer") });
    println!("oneshot: {}", question.await?);
    let (announce, _) = broadcast::channel(16);
    let listeners: Vec<_> = (0..3)
        .map(|_| {
            let mut listener = announce.subscribe();
            tokio::spawn(async move {
                let mut heard = 0u32;
                while let Ok(number) = listener.recv().await {
                    heard += number;
                }
                heard
            })
        })
        .collect();
    for number in 1..=10 {
        announce.send(number)?;
    }
    drop(announce);
    for listener in listeners {
        println!("broadcast: {}", listener.await?);
    }
    let (change, mut seen) = watch::channel(0);
    tokio::spawn(async move {
        for number in 1..=100 {
            change.send_replace(number);
            yield_now().await;
        }
        sleep(Duration::from_millis(5)).await;
    });
    println!("watch: {}", *seen.wait_for(|number| *number == 100).await?);
    Ok(())
}

async fn locks() -> Outcome {
    let (counter, table) = (Arc::new(Mutex::new(0)), Arc::new(RwLock::new(Vec::new())));
    let (permits, barrier, gate) = (Arc::new(Semaphore::new(3)), Arc::new(Barrier::new(20)), Arc::new(Notify::new()));
    let most = Arc::new(AtomicU64::new(0));
    let mut set = JoinSet::new();
    for number in 0..20u64 {
        let (counter, table, permits, barrier) = (counter.clone(), table.clone(), permits.clone(), barrier.clone());
        let most = most.clone();
        set.spawn(async move {
            barrier.wait().await;
            for _ in 0..50 {
                let mut counter = counter.lock().await;
                let before = *counter;
                yield_now().await;
                *counter = before + 1;
            }
            table.write().await.push(number);
            if let Ok(_permit) = permits.acquire().await {
                let inside = 3 - permits.available_permits() as u64;
                most.fetch_max(inside, Ordering::Relaxed);
                sleep(Duration::from_millis(1)).await;
            }
        });
    }
    while let Some(ended) = set.join_next().await {
        ended?;
    }
    let mut table = table.read().await.clone();
    table.sort_unstable();
    println!("locks: {} {} {}", counter.lock().await, table.len(), most.load(Ordering::Relaxed) <= 3);
    let notified = gate.clone();
    let waiter = tokio::spawn(async move { notified.notified().await });
    gate.notify_one();
    waiter.await?;
    println!("notified");
    Ok(())
}

async fn time() -> Outcome {
    let begin = Instant::now();
    println!("timeout: {}", timeout(Duration::from_millis(20), std::future::pending::<()>()).await.is_err());
    let mut ticks = interval(Duration::from_millis(5));
    for _ in 0..5 {
        ticks.tick().await;
    }
    println!("time has passed: {}", begin.elapsed() >= Duration::from_millis(40));
    let mut order = Vec::new();
    let (late, early) = (sleep(Duration::from_millis(60)), sleep(Duration::from_millis(10)));
    tokio::pin!(late, early);
    while order.len() < 2 {
        tokio::select! {
            () = &mut late, if !order.contains(&"late") => order.push("late"),
            () = &mut early, if !order.contains(&"early") => order.push("early"),
        }
    }
    println!("select: {}", order.join(", "));
    let mut sleepers = JoinSet::new();
    for number in 0..1000 {
        sleepers.spawn(async move {
            sleep(Duration::from_micros(number % 7 * 900)).await;
            number
        });
    }
    let mut sum = 0;
    while let Some(number) = sleepers.join_next().await {
        sum += number?;
    }
    println!("sleepers: {sum}");
    Ok(())
}

async fn files() -> Outcome {
    tokio::fs::create_dir_all("tokio/below").await?;
    tokio::fs::write("tokio/below/file", b"one\ntwo\nthree\n").await?;
    let mut file = tokio::fs::OpenOptions::new().append(true).open("tokio/below/file").await?;
    file.write_all(b"four\n").await?;
    file.sync_all().await?;
    let mut lines = BufReader::new(tokio::fs::File::open("tokio/below/file").await?).lines();
    let mut words = Vec::new();
    while let Some(line) = lines.next_line().await? {
        words.push(line);
    }
    println!("lines: {}", words.join(" "));
    tokio::fs::rename("tokio/below/file", "tokio/other").await?;
    println!("length: {}", tokio::fs::metadata("tokio/other").await?.len());
    let missing = tokio::fs::read("tokio/none").await;
    println!("missing: {:?}", missing.map_err(|error| error.kind()));
    tokio::fs::remove_dir_all("tokio").await?;
    Ok(())
}

async fn processes() -> Outcome {
    let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (mut input, mut output) = (child.stdin.take().ok_or("no input")?, child.stdout.take().ok_or("no output")?);
    let writer = tokio::spawn(async move { input.write_all(&[b'x'; 300_000]).await });
    let mut read = Vec::new();
    output.read_to_end(&mut read).await?;
    writer.await??;
    println!("cat: {} bytes, {}", read.len(), child.wait().await?);
    let statuses = [0, 3, 77].map(|status| Command::new("sh").args(["-c", &format!("exit {status}")]).status());
    for status in statuses {
        println!("sh: {}", status.await?);
    }
    let mut sleeper = Command::new("sleep").arg("1000").kill_on_drop(true).spawn()?;
    println!("sleeps: {}", timeout(Duration::from_millis(50), sleeper.wait()).await.is_err());
    sleeper.kill().await?;
    println!("killed: {:?}", sleeper.wait().await?.code());
    let many: Vec<_> = (0..12).map(|number| Command::new("echo").arg(number.to_string()).output()).collect();
    let mut set = JoinSet::new();
    many.into_iter().for_each(|output| {
        set.spawn(output);
    });
    let mut sum = 0;
    while let Some(output) = set.join_next().await {
        sum += String::from_utf8(output??.stdout)?.trim().parse::<u32>()?;
    }
    println!("echoes: {sum}");
    Ok(())
}

async fn signals() -> Outcome {
    let mut users = signal(SignalKind::user_defined1())?;
    let mut children = signal(SignalKind::child())?;
    let own = std::process::id().to_string();
    let kill = Command::new("kill").args(["-USR1", &own]).status().await?;
    println!("signal: {} {}", kill.success(), users.recv().await.is_some());
    println!("child: {}", children.recv().await.is_some());
    Ok(())
}

async fn tcp() -> Outcome {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await?;
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                tokio::io::copy(&mut reader, &mut writer).await
            });
        }
        #[allow(unreachable_code)]
        std::io::Result::Ok(())
    });
    let mut clients = JoinSet::new();
    for client in 0..50u8 {
        clients.spawn(async move {
            let mut stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            for round in 0..20u8 {
                let sent = vec![client ^ round; 1 + usize::from(round) * 700];
                let mut received = vec![0; sent.len()];
                let (mut reader, mut writer) = stream.split();
                tokio::try_join!(writer.write_all(&sent), reader.read_exact(&mut received))?;
                if sent != received {
                    return Err(std::io::ErrorKind::InvalidData.into());
                }
            }
            stream.shutdown().await?;
            stream.read(&mut [0; 8]).await
        });
    }
    let mut ended = 0;
    while let Some(rest) = clients.join_next().await {
        ended += usize::from(rest?? == 0);
    }
    server.abort();
    println!("tcp: {ended} clients");
    let refused = TcpStream::connect(("127.0.0.1", 1)).await;
    println!("refused: {:?}", refused.map(|_| ()).map_err(|error| error.kind()));
    Ok(())
}

async fn datagrams() -> Outcome {
    let (one, other) = (UdpSocket::bind(("127.0.0.1", 0)).await?, UdpSocket::bind(("127.0.0.1", 0)).await?);
    one.connect(other.local_addr()?).await?;
    for number in 0..10u8 {
        one.send(&[number; 100]).await?;
        let mut bytes = [0; 200];
        let (length, from) = other.recv_from(&mut bytes).await?;
        other.send_to(&bytes[..length / 2], from).await?;
        if one.recv(&mut bytes).await? != 50 || bytes[49] != number {
            return Err("a datagram is not as it was sent".into());
        }
    }
    println!("udp: done");
    Ok(())
}

async fn local_sockets() -> Outcome {
    let listener = UnixListener::bind("socket")?;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        stream.write_all(text.to_uppercase().as_bytes()).await?;
        std::io::Result::Ok(stream.peer_cred()?.pid().is_some())
    });
    let mut stream = UnixStream::connect("socket").await?;
    stream.write_all(b"over a local socket").await?;
    stream.shutdown().await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    println!("local: {answer}, {}", server.await??);
    let (mut a, mut b) = UnixStream::pair()?;
    let copied = tokio::spawn(async move {
        let mut bytes = Vec::new();
        b.read_to_end(&mut bytes).await.map(|_| bytes.len())
    });
    for _ in 0..100 {
        a.write_all(&[7; 5000]).await?;
    }
    drop(a);
    println!("pair: {}", copied.await??);
    Ok(())
}
