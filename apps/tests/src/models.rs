//! Kernel threads, and the matrix server in every model.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU32;

use abi_unix::{Counter, Errno, SystemCall};
use cops::process::Ending;
use cops::system;
use cops::system::kernel_side::{KernelSide, choose};
use cops::thread;
use cops::time::Duration;

use crate::harness::{self, LIMIT, Outcome, counter};
use crate::server::{Server, ask};
use crate::{check, check_eq, must};

const SIDES: [KernelSide; 3] = [KernelSide::WaitingThreads, KernelSide::RetryingThreads, KernelSide::PollingThread];

fn kernel_side(number: usize) -> Result<usize, Errno> {
    // SAFETY: the call has no pointers.
    abi_unix::errno::decode(unsafe { system::syscall(SystemCall::KernelSide as usize, [number, 0, 0, 0, 0, 0]) })
}

pub async fn wrong_sides_are_refused() -> Outcome {
    for number in [4, 5, 1 << 32, usize::MAX] {
        check_eq!(kernel_side(number), Err(Errno::EINVAL));
    }
    check_eq!(kernel_side(0), Ok(0));
    Ok(())
}

/// All waiting calls work on every kernel side, one after the other in one process.
pub async fn calls_wait_on_every_side() -> Outcome {
    for side in SIDES.into_iter().chain([KernelSide::Coroutines]) {
        must!(choose(side));
        // Threads that pass a number on through pipes.
        let mut threads = Vec::new();
        let (mut reader, input) = must!(system::file::pipe(0));
        for _ in 0..8 {
            let (next, writer) = must!(system::file::pipe(0));
            threads.push(must!(thread::spawn(move || {
                for _ in 0..20 {
                    let mut bytes = [0; 8];
                    if system::file::read(reader.raw(), &mut bytes) != Ok(8) {
                        return false;
                    }
                    let number = u64::from_le_bytes(bytes) + 1;
                    if system::file::write(writer.raw(), &number.to_le_bytes()) != Ok(8) {
                        return false;
                    }
                }
                true
            })));
            reader = next;
        }
        for number in 0..20u64 {
            check_eq!(system::file::write(input.raw(), &(number * 100).to_le_bytes()), Ok(8));
            let mut bytes = [0; 8];
            check_eq!(system::file::read(reader.raw(), &mut bytes), Ok(8));
            check_eq!(u64::from_le_bytes(bytes), number * 100 + 8);
        }
        check!(threads.into_iter().all(thread::JoinHandle::join));
        // Coroutines with asynchronous calls, some of them dropped.
        let (reader, writer) = must!(cops::io::pipe());
        let reader = Arc::new(reader);
        let waiting = cops::spawn({
            let reader = reader.clone();
            async move { reader.read(alloc::vec![0; 10]).await }
        });
        {
            let (other, _kept) = must!(cops::io::pipe());
            check!(cops::timeout(Duration::from_millis(2), other.read(alloc::vec![0; 10])).await.is_err());
        }
        cops::sleep(Duration::from_millis(1)).await;
        must!(writer.write_all(b"hello".to_vec()).await.0);
        let (count, bytes) = must!(waiting.await);
        check_eq!((count, &bytes[..5]), (Ok(5), &b"hello"[..]));
        // Locks, sleep and time.
        let locked = Arc::new(thread::Mutex::new(0u32));
        let counting: Vec<_> = (0..4)
            .map(|_| {
                let locked = locked.clone();
                thread::spawn(move || {
                    for _ in 0..200 {
                        *locked.lock() += 1;
                        thread::yield_now();
                    }
                    thread::sleep(Duration::from_millis(1));
                })
            })
            .collect::<Result<_, _>>()
            .map_err(|error| alloc::format!("{error:?}"))?;
        counting.into_iter().for_each(thread::JoinHandle::join);
        check_eq!(*locked.lock(), 800);
    }
    Ok(())
}

/// Many kernel threads at once, which leave no resources behind; processes that end while theirs wait, run and poll.
pub async fn kernel_threads_come_and_go() -> Outcome {
    let free = counter(Counter::FramesFree)?;
    for side in ["1", "2", "3"] {
        let ending = harness::ending_of_act(match side {
            "1" => "models-many-1",
            "2" => "models-many-2",
            _ => "models-many-3",
        });
        check_eq!((side, ending.await?), (side, Ending::Exited(5)));
    }
    for side in ["models-forever-1", "models-forever-2", "models-forever-3"] {
        let child = must!(harness::act(side));
        cops::sleep(Duration::from_millis(20)).await;
        must!(child.kill());
        check_eq!(must!(child.wait().await), Ending::Killed(abi_unix::types::signal::KILL as u8));
    }
    check_eq!(harness::ending_of_act("models-execute").await?, Ending::Exited(7));
    // The kernel keeps some stacks for later threads.
    harness::reaches(Counter::FramesFree, free.saturating_sub(800)).await
}

/// Runs as another process of the tests above.
pub async fn act(name: &str) -> i32 {
    let side = SIDES[match name.as_bytes().last() {
        Some(b'2') => 1,
        Some(b'3') => 2,
        _ => 0,
    }];
    if choose(side).is_err() {
        return 99;
    }
    static GATE: AtomicU32 = AtomicU32::new(0);
    let in_flight = || async {
        for _ in 0..20 {
            cops::spawn(async {
                if let Ok((reader, _writer)) = cops::io::pipe() {
                    let _ = reader.read(alloc::vec![0; 8]).await;
                }
            })
            .detach();
        }
        cops::yield_now().await;
    };
    let reader = || {
        let (reader, _writer) = system::file::pipe(0)?;
        system::file::read(reader.raw(), &mut [0; 8])
    };
    if name.starts_with("models-many") {
        in_flight().await;
        for _ in 0..30 {
            if thread::spawn(|| system::thread::futex_wait(&GATE, 0, None)).is_err() || thread::spawn(reader).is_err() {
                return 98;
            }
        }
        let sums: Vec<_> = (0..100u32).filter_map(|number| thread::spawn(move || number).ok()).collect();
        let sum: u32 = sums.into_iter().map(thread::JoinHandle::join).sum();
        return if sum == 4950 { 5 } else { 97 };
    }
    if name == "models-execute" {
        in_flight().await;
        let _ = thread::spawn(reader);
        return crate::thread::act("threads-execute");
    }
    loop {
        in_flight().await;
        let _ = thread::spawn(reader);
        let _ = thread::spawn(|| ()).map(thread::JoinHandle::join);
    }
}

/// Runs a server in one model, and clients at once and one after the other.
async fn serves(model: &str, port: u16) -> Result<(), String> {
    let server = Server::start(port, &["--model", model]).await?;
    for round in 0..2u32 {
        let mut streams = Vec::new();
        for _ in 0..12 {
            streams.push(server.connect().await?);
        }
        for turn in 0..3 {
            for (number, stream) in streams.iter().enumerate() {
                ask(stream, [1, 15, 7][number % 3], round * 100 + turn).await?;
            }
        }
        // One client leaves in the middle of a request.
        let unfinished = server.connect().await?;
        must!(unfinished.write_all(15u32.to_le_bytes().to_vec()).await.0);
        drop(unfinished);
        let mad = server.connect().await?;
        let _ = mad.write_all(alloc::vec![0xff; 100]).await;
        check_eq!(must!(cops::timeout(LIMIT, mad.read(alloc::vec![0; 1])).await).0.unwrap_or(0), 0);
    }
    Ok(())
}

pub async fn servers_of_coroutines() -> Outcome {
    serves("kcuc", 7120).await?;
    serves("ktuc", 7121).await?;
    serves("ktuc-epoll", 7122).await
}

pub async fn servers_of_threads() -> Outcome {
    serves("kcut", 7123).await?;
    serves("ktut-wait", 7124).await?;
    serves("ktut", 7125).await
}
