//! Many futures and coroutines together: `select!`, sets, scopes, tokens, broadcasts, watched values, readers of lines.
//!
//! The effect of each poll is tested on the host, beside models; here coroutines run on four workers, and the kernel
//! completes their calls.

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use cops::file::SeekFrom;
use cops::io::{BufReader, BufWriter, ReadExactError, pipe};
use cops::sync::broadcast::ReceiveError;
use cops::sync::{CancellationToken, Notify, broadcast, oneshot, watch};
use cops::time::Duration;
use cops::{Cancelled, Errno, JoinSet, Priority, channel};

use crate::harness::{LIMIT, Outcome, calls_in_flight_return_to};
use crate::{check, check_eq, must};

/// Counts how often a future was dropped.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

pub async fn select_takes_what_comes_first() -> Outcome {
    let (reader, writer) = must!(pipe());
    let (sender, receiver) = channel::bounded(1);
    let mut seen = Vec::new();
    // The read is not strict: it is kept outside of the loop.
    let mut read = reader.read(vec![0; 4]);
    while seen.len() < 4 {
        cops::select! {
            (result, buffer) = &mut read => {
                check!(sender.try_send(0).is_ok());
                seen.push(alloc::format!("{:?}", &buffer[..must!(result)]));
                read = reader.read(vec![0; 4]);
            }
            Some(number) = receiver.receive() => {
                seen.push(number.to_string());
                must!(writer.write_all(&b"x"[..]).await.0);
            }
            () = cops::sleep(Duration::from_millis(1)), if seen.is_empty() => {
                seen.push("slept".into());
                must!(writer.write_all(&b"x"[..]).await.0);
            }
        }
    }
    check_eq!(seen, ["slept", "[120]", "0", "[120]"].map(String::from));
    drop(writer);
    check_eq!(read.await.0, Ok(0));
    Ok(())
}

pub async fn calls_are_joined() -> Outcome {
    let (one, two) = (must!(pipe()), must!(pipe()));
    let ((result, bytes), written, number) =
        cops::join!(one.0.read(vec![0; 2]), async { one.1.write_all(&b"ab"[..]).await.0 }, cops::spawn(async { 7 }),);
    check_eq!((result, bytes, written, number), (Ok(2), b"ab".to_vec(), Ok(()), Ok(7)));
    // The first error ends the other, whose call is cancelled.
    let endless = async { two.0.read(vec![0; 1]).await.0 };
    let failed = async { cops::file::read("/no/such/file").await };
    check_eq!(cops::try_join!(endless, failed), Err(Errno::ENOENT));
    calls_in_flight_return_to(0).await
}

pub async fn results_of_a_set_come_as_they_end() -> Outcome {
    must!(cops::alloc_cpu(3));
    let mut set = JoinSet::new();
    for number in 0..1000u64 {
        set.spawn(async move {
            for _ in 0..number % 7 {
                cops::yield_now().await;
            }
            number
        });
    }
    let mut sum = 0;
    while let Some(number) = set.join_next().await {
        sum += must!(number);
    }
    check_eq!((sum, set.len()), (499_500, 0));
    // One that is cancelled alone, those that are cancelled with the set, and those that the set is dropped with.
    let drops = Arc::new(AtomicUsize::new(0));
    let endless = |dropped: Dropped| async move {
        core::future::pending::<()>().await;
        drop(dropped);
        0
    };
    let alone = set.spawn(endless(Dropped(drops.clone())));
    set.spawn_at(Priority::LOWEST, endless(Dropped(drops.clone())));
    must!(cops::executor().cancel(alone).map_err(|_| Errno::ESRCH));
    check_eq!(must!(cops::timeout(LIMIT, set.join_next()).await), Some(Err(Cancelled)));
    must!(cops::timeout(LIMIT, set.shutdown()).await);
    check_eq!(drops.load(Ordering::Relaxed), 2);
    set.spawn(endless(Dropped(drops.clone())));
    cops::yield_now().await;
    drop(set);
    until_equal(&drops, 3).await
}

async fn until_equal(count: &AtomicUsize, expected: usize) -> Outcome {
    let reached = async {
        while count.load(Ordering::Relaxed) != expected {
            cops::sleep(Duration::from_millis(1)).await;
        }
    };
    check!(cops::timeout(LIMIT, reached).await.is_ok(), "{} of {expected}", count.load(Ordering::Relaxed));
    Ok(())
}

pub async fn a_scope_ends_after_its_coroutines() -> Outcome {
    must!(cops::alloc_cpu(3));
    let ended = Arc::new(AtomicUsize::new(0));
    let count = ended.clone();
    let seven = cops::scope(async |scope| {
        for number in 0..100 {
            let (count, inner) = (count.clone(), scope.clone());
            scope
                .spawn(async move {
                    cops::sleep(Duration::from_micros(number * 10)).await;
                    // A coroutine of the scope adds another.
                    inner.spawn(async move { count.fetch_add(1, Ordering::Relaxed) }).detach();
                })
                .detach();
        }
        7
    })
    .await;
    check_eq!((seven, ended.load(Ordering::Relaxed)), (7, 100));
    // A scope that is dropped leaves no coroutine behind.
    let drops = Arc::new(AtomicUsize::new(0));
    let count = drops.clone();
    let endless = cops::scope(async |scope| {
        for _ in 0..10 {
            let dropped = Dropped(count.clone());
            scope
                .spawn(async move {
                    core::future::pending::<()>().await;
                    drop(dropped);
                })
                .detach();
        }
    });
    check!(cops::timeout(Duration::from_millis(20), endless).await.is_err());
    until_equal(&drops, 10).await
}

pub async fn a_token_ends_many() -> Outcome {
    must!(cops::alloc_cpu(3));
    let token = CancellationToken::new();
    let mut set = JoinSet::new();
    for number in 0..100 {
        let (own, (reader, writer)) = (token.child_token(), must!(pipe()));
        set.spawn(async move {
            let read = own.run_until_cancelled(reader.read(vec![0; 1])).await;
            drop(writer);
            (number, read.is_none())
        });
    }
    cops::sleep(Duration::from_millis(5)).await;
    check!(set.try_join_next().is_none());
    token.cancel();
    let mut ended = 0;
    while let Some(end) = must!(cops::timeout(LIMIT, set.join_next()).await) {
        check!(must!(end).1);
        ended += 1;
    }
    check_eq!(ended, 100);
    calls_in_flight_return_to(0).await
}

pub async fn all_receivers_of_a_broadcast_get_all_values() -> Outcome {
    must!(cops::alloc_cpu(3));
    const VALUES: u64 = 2000;
    let (sender, receiver) = broadcast::channel(8);
    let mut set = JoinSet::new();
    for _ in 0..5 {
        let mut receiver = receiver.resubscribe();
        set.spawn(async move {
            let (mut next, mut lost) = (0, 0);
            loop {
                match receiver.receive().await {
                    Ok(value) if value == next => next += 1,
                    Ok(_) => return Err(next),
                    Err(ReceiveError::Lagged(count)) => {
                        next += count;
                        lost += count;
                    }
                    Err(ReceiveError::Closed) => return Ok((next, lost)),
                }
            }
        });
    }
    drop(receiver);
    for value in 0..VALUES {
        check_eq!(sender.send(value).map_err(|_| Errno::EPIPE), Ok(5));
        // Otherwise all others would be pushed out.
        if value % 4 == 0 {
            cops::yield_now().await;
        }
    }
    drop(sender);
    while let Some(end) = must!(cops::timeout(LIMIT, set.join_next()).await) {
        let seen = must!(end);
        check!(seen.is_ok_and(|(seen, lost)| seen == VALUES && lost < VALUES), "{seen:?}");
    }
    Ok(())
}

pub async fn the_last_value_is_always_seen() -> Outcome {
    must!(cops::alloc_cpu(3));
    const LAST: u64 = 2000;
    let (sender, receiver) = watch::channel(0u64);
    let (answer, answered) = oneshot::channel();
    let mut set = JoinSet::new();
    for _ in 0..5 {
        let mut receiver = receiver.clone();
        set.spawn(async move {
            let mut last = 0;
            while receiver.changed().await.is_ok() {
                let value = *receiver.borrow_and_update();
                if value < last {
                    return 0;
                }
                last = value;
            }
            last
        });
    }
    let mut waits = receiver.clone();
    set.spawn(async move {
        let reached = waits.wait_for(|value| *value >= 1000).await.map(|value| *value >= 1000);
        let _ = answer.send(reached.is_ok());
        LAST
    });
    drop(receiver);
    for value in 1..=LAST {
        check!(sender.send(value).is_ok());
        if value % 16 == 0 {
            cops::yield_now().await;
        }
    }
    check_eq!(must!(cops::timeout(LIMIT, answered).await), Ok(true));
    drop(sender);
    while let Some(end) = must!(cops::timeout(LIMIT, set.join_next()).await) {
        check_eq!(must!(end), LAST);
    }
    Ok(())
}

pub async fn lines_survive_reads_that_are_dropped() -> Outcome {
    must!(cops::alloc_cpu(1));
    let (reader, writer) = must!(pipe());
    let sending = cops::spawn(async move {
        let mut writer = BufWriter::with_capacity(50, writer);
        for number in 0..500 {
            writer.write_all(alloc::format!("line {number}\r\n").as_bytes()).await?;
            if number % 3 == 0 {
                writer.flush().await?;
                cops::sleep(Duration::from_micros(100)).await;
            }
        }
        writer.write_all(b"the end").await?;
        writer.flush().await
    });
    let mut lines = BufReader::with_capacity(7, reader).lines();
    let (mut number, mut interrupted) = (0, 0u32);
    loop {
        cops::select! {
            line = lines.next_line() => match must!(line) {
                Some(line) if line == "the end" => break,
                line => {
                    check_eq!(line, Some(alloc::format!("line {number}")));
                    number += 1;
                }
            },
            () = cops::sleep(Duration::from_micros(50)) => interrupted += 1,
        }
    }
    check_eq!((number, must!(lines.next_line().await)), (500, None));
    check!(interrupted > 0);
    must!(must!(sending.await));
    calls_in_flight_return_to(0).await
}

pub async fn a_time_limit_gives_the_buffer_back() -> Outcome {
    let (reader, writer) = must!(pipe());
    let mut buffer = vec![0u8; 8];
    buffer[7] = 42;
    let address = buffer.as_ptr().addr();
    for way in [cops::call::Way::Direct, cops::call::Way::Ring] {
        cops::call::set_way(way);
        let (result, returned) = reader.read(buffer).timeout(Duration::from_millis(2)).await;
        check_eq!((result, returned.as_ptr().addr(), returned[7]), (Err(Errno::ETIMEDOUT), address, 42));
        must!(writer.write_all(&b"byte"[..]).await.0);
        let (result, returned) = reader.read(returned).timeout(LIMIT).await;
        check_eq!((result, &returned[..4]), (Ok(4), &b"byte"[..]));
        let (result, returned) = reader.read(returned).until(cops::sleep(Duration::from_millis(2))).await;
        check_eq!((result, returned.as_ptr().addr()), (Err(Errno::ECANCELED), address));
        must!(writer.write_all(&b"more"[..]).await.0);
        let (result, returned) = reader.read(returned).until(async {}).await;
        check_eq!((result, &returned[..4]), (Ok(4), &b"more"[..]));
        buffer = returned;
    }
    cops::call::set_way(cops::call::Way::Direct);
    calls_in_flight_return_to(0).await
}

pub async fn an_early_end_is_told_from_a_failure() -> Outcome {
    let (reader, writer) = must!(pipe());
    must!(writer.write_all(&b"abc"[..]).await.0);
    check_eq!(writer.read_fails(), Err(ReadExactError::Other(Errno::EBADF)));
    drop(writer);
    let (result, buffer) = reader.read_exact(vec![0; 4]).await;
    check_eq!((result, &buffer[..3]), (Err(ReadExactError::UnexpectedEof), &b"abc"[..]));
    Ok(())
}

/// A read of the end that cannot be read.
trait ReadFails {
    fn read_fails(&self) -> Result<(), ReadExactError>;
}

impl ReadFails for cops::io::PipeWriter {
    fn read_fails(&self) -> Result<(), ReadExactError> {
        Ok(cops::system::file::read(self.descriptor().raw(), &mut [0; 4]).map(drop)?)
    }
}

pub async fn files_are_copied_and_trees_removed() -> Outcome {
    const TREE: &str = "/tmp/combining";
    check_eq!(cops::file::remove_dir_all("/tmp/combining"), Err(Errno::ENOENT));
    must!(cops::file::create_dir_all("/tmp//combining/a/b"));
    must!(cops::file::create_dir_all("/tmp/combining/a/b/"));
    let contents: Vec<u8> = (0..30_000u32).map(|number| (number * 7) as u8).collect();
    must!(cops::file::write("/tmp/combining/a/one", contents.clone()).await);
    check_eq!(cops::file::copy("/tmp/combining/a/one", "/tmp/combining/a/b/two").await, Ok(30_000));
    check!(must!(cops::file::read("/tmp/combining/a/b/two").await) == contents);
    check_eq!(cops::file::create_dir_all("/tmp/combining/a/one/c"), Err(Errno::EEXIST));
    let file = must!(cops::file::File::open("/tmp/combining/a/b/two"));
    check_eq!(file.seek(SeekFrom::End(-3)), Ok(29_997));
    let mut last = Vec::new();
    check_eq!(BufReader::new(&file).read_to_end(&mut last).await, Ok(3));
    check!(last == contents[29_997..]);
    must!(cops::file::remove_dir_all(TREE));
    check_eq!(cops::file::try_exists(TREE), Ok(false));
    Ok(())
}

pub async fn a_signal_ends_a_loop_of_strict_futures() -> Outcome {
    must!(cops::alloc_cpu(3));
    let (stop, ready) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (sender, receiver) = channel::bounded(2);
    let (own, told) = (stop.clone(), ready.clone());
    let sums = cops::spawn(async move {
        let mut sum = 0u64;
        loop {
            cops::select! {
                Some(number) = receiver.receive() => sum += number,
                () = own.notified() => break sum,
            }
            if sum == 4950 {
                told.notify_one();
            }
        }
    });
    for number in 0..100 {
        must!(sender.send(number).await.map_err(|_| Errno::EPIPE));
    }
    must!(cops::timeout(LIMIT, ready.notified()).await);
    stop.notify_one();
    check_eq!(must!(cops::timeout(LIMIT, sums).await), Ok(4950));
    Ok(())
}

/// The crates `critical-section`, `getrandom` and `embedded-io-async` work, as others call them. (`log`, `tracing` and
/// `futures-core` need nothing of the machine.)
pub async fn crates_of_others_find_what_they_need() -> Outcome {
    use embedded_io_async::{BufRead, Read, Write};

    must!(cops::alloc_cpu(3));
    let count = Arc::new(AtomicUsize::new(0));
    let mut set = JoinSet::new();
    for _ in 0..8 {
        let count = count.clone();
        set.spawn(async move {
            for _ in 0..500 {
                critical_section::with(|_| {
                    // Not one step: without the section some would be lost.
                    let before = critical_section::with(|_| count.load(Ordering::Relaxed));
                    core::hint::spin_loop();
                    count.store(before + 1, Ordering::Relaxed);
                });
                cops::yield_now().await;
            }
        });
    }
    while let Some(end) = must!(cops::timeout(LIMIT, set.join_next()).await) {
        must!(end);
    }
    check_eq!(count.load(Ordering::Relaxed), 4000);

    let (mut one, mut two) = ([0u8; 32], [0u8; 32]);
    check!(getrandom::fill(&mut one).is_ok() && getrandom::fill(&mut two).is_ok());
    check!(one != two && one != [0; 32]);

    let (reader, writer) = must!(pipe());
    let (mut reader, mut writer) = (BufReader::new(reader), BufWriter::new(writer));
    check_eq!(Write::write_all(&mut writer, b"through traits").await, Ok(()));
    check_eq!(Write::flush(&mut writer).await, Ok(()));
    let mut bytes = [0; 7];
    check!(Read::read_exact(&mut reader, &mut bytes).await.is_ok());
    check_eq!((&bytes, BufRead::fill_buf(&mut reader).await), (b"through", Ok(&b" traits"[..])));
    Ok(())
}
