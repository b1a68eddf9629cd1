//! Workers: more than one, waking each other, stealing, sleeping.

use alloc::sync::Arc;
use alloc::vec::Vec;
use cops::time::Duration;
use cops::{Errno, channel, system};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::harness::{LIMIT, Outcome};
use crate::{check, check_eq, must};

/// Returns the kernel's number of the calling worker.
fn thread() -> usize {
    // SAFETY: the call has no pointers.
    unsafe { system::call!(GetThread) }.unwrap_or(0)
}

pub async fn all_workers_work() -> Outcome {
    must!(cops::alloc_cpu(3));
    check_eq!(cops::workers(), 4);
    let seen = Arc::new(cops::Lock::new(alloc::collections::BTreeSet::new()));
    let arrived = Arc::new(AtomicUsize::new(0));
    let mut running = Vec::new();
    for _ in 0..16 {
        let (seen, arrived) = (seen.clone(), arrived.clone());
        running.push(cops::spawn(async move {
            if seen.lock().insert(thread()) {
                arrived.fetch_add(1, Ordering::Relaxed);
            }
            // Until the others have come. Without the lock: a worker whose slice ends while it has the lock would keep
            // all others from it for a round.
            while arrived.load(Ordering::Relaxed) < 4 {
                core::hint::spin_loop();
            }
        }));
    }
    for handle in running {
        must!(handle.await);
    }
    check_eq!(seen.lock().len(), 4);
    Ok(())
}

pub async fn there_is_a_limit() -> Outcome {
    must!(cops::alloc_cpu(7));
    check_eq!(cops::workers(), 8);
    check_eq!(cops::alloc_cpu(1), Err(Errno::EAGAIN));
    let sum: u64 = {
        let mut sum = 0;
        for handle in (0..100u64).map(|number| cops::spawn(async move { number })).collect::<Vec<_>>() {
            sum += must!(handle.await);
        }
        sum
    };
    check_eq!(sum, 4950);
    Ok(())
}

pub async fn values_pass_between_workers() -> Outcome {
    must!(cops::alloc_cpu(3));
    const VALUES: u64 = 5000;
    let sum = Arc::new(AtomicU64::new(0));
    let mut running = Vec::new();
    for _ in 0..4 {
        let (sender, receiver) = channel::bounded(4);
        let (answers, done) = channel::bounded(4);
        running.push(cops::spawn(async move {
            for value in 0..VALUES {
                if sender.send(value).await.is_err() {
                    return;
                }
            }
        }));
        running.push(cops::spawn(async move {
            while let Some(value) = receiver.receive().await {
                if answers.send(value * 2).await.is_err() {
                    return;
                }
            }
        }));
        let sum = sum.clone();
        running.push(cops::spawn(async move {
            while let Some(value) = done.receive().await {
                sum.fetch_add(value, Ordering::Relaxed);
            }
        }));
    }
    for handle in running {
        must!(handle.await);
    }
    check_eq!(sum.load(Ordering::Relaxed), 4 * VALUES * (VALUES - 1));
    Ok(())
}

pub async fn locks_exclude() -> Outcome {
    must!(cops::alloc_cpu(3));
    let counted = Arc::new(cops::sync::Mutex::new(0u64));
    let semaphore = Arc::new(cops::sync::Semaphore::new(3));
    let inside = Arc::new(AtomicUsize::new(0));
    let mut running = Vec::new();
    for _ in 0..20 {
        let (counted, semaphore, inside) = (counted.clone(), semaphore.clone(), inside.clone());
        running.push(cops::spawn(async move {
            for _ in 0..50 {
                let mut value = counted.lock().await;
                let before = *value;
                cops::yield_now().await;
                *value = before + 1;
                drop(value);
                let permit = semaphore.acquire().await;
                let now = inside.fetch_add(1, Ordering::Relaxed) + 1;
                cops::yield_now().await;
                inside.fetch_sub(1, Ordering::Relaxed);
                drop(permit);
                if now > 3 {
                    return false;
                }
            }
            true
        }));
    }
    for handle in running {
        check_eq!(handle.await, Ok(true));
    }
    check_eq!(*counted.lock().await, 1000);
    Ok(())
}

pub async fn a_notification_is_kept_for_the_next() -> Outcome {
    let notify = Arc::new(cops::sync::Notify::new());
    notify.notify_one();
    must!(cops::timeout(LIMIT, notify.notified()).await);
    check!(cops::timeout(Duration::from_millis(2), notify.notified()).await.is_err());
    let waiting = cops::spawn({
        let notify = notify.clone();
        async move { notify.notified().await }
    });
    cops::yield_now().await;
    notify.notify_one();
    must!(must!(cops::timeout(LIMIT, waiting).await));
    Ok(())
}

pub async fn a_sleeping_worker_is_woken() -> Outcome {
    must!(cops::alloc_cpu(1));
    for _ in 0..200 {
        let (sender, receiver) = channel::bounded(1);
        let waiting = cops::spawn(async move { receiver.receive().await });
        cops::sleep(Duration::from_micros(500)).await;
        must!(sender.try_send(1).map_err(|_| Errno::EPIPE));
        check_eq!(must!(cops::timeout(LIMIT, waiting).await), Ok(Some(1)));
    }
    Ok(())
}

/// A poll may take long. Coroutines that it wakes are queued at the polling worker, and taken from there by a sleeping
/// one.
pub async fn a_long_poll_keeps_nothing_waiting() -> Outcome {
    must!(cops::alloc_cpu(1));
    for _ in 0..20 {
        let (sender, receiver) = channel::bounded(1);
        let received = Arc::new(AtomicUsize::new(0));
        let waiting = cops::spawn({
            let received = received.clone();
            async move { received.store(receiver.receive().await.unwrap_or(0), Ordering::Relaxed) }
        });
        cops::sleep(Duration::from_millis(1)).await;
        must!(sender.try_send(7).map_err(|_| Errno::EPIPE));
        let begun = cops::time::Instant::now();
        while received.load(Ordering::Relaxed) == 0 {
            check!(begun.elapsed() < LIMIT, "the woken coroutine has not run");
            core::hint::spin_loop();
        }
        check_eq!(received.load(Ordering::Relaxed), 7);
        must!(waiting.await);
    }
    Ok(())
}

pub async fn a_call_that_waits_keeps_nothing_waiting() -> Outcome {
    must!(cops::alloc_cpu(1));
    for _ in 0..50 {
        let (reader, writer) = must!(cops::io::pipe());
        let (sender, receiver) = channel::bounded(1);
        let waiting = cops::spawn(async move {
            let value: u8 = receiver.receive().await.unwrap_or(0);
            writer.write_all(alloc::vec![value; 3]).await.0
        });
        cops::sleep(Duration::from_micros(500)).await;
        must!(sender.try_send(7).map_err(|_| Errno::EPIPE));
        // Blocks the worker until the other coroutine has written.
        let mut read = [0; 3];
        check_eq!(system::file::read(reader.descriptor().raw(), &mut read), Ok(3));
        check_eq!(read, [7; 3]);
        check_eq!(waiting.await, Ok(Ok(())));
    }
    Ok(())
}

pub async fn idle_workers_use_no_time() -> Outcome {
    must!(cops::alloc_cpu(3));
    cops::sleep(Duration::from_millis(20)).await;
    let calls = crate::harness::counter(abi_unix::Counter::SystemCalls)?;
    cops::sleep(Duration::from_millis(200)).await;
    let calls = crate::harness::counter(abi_unix::Counter::SystemCalls)? - calls;
    check!(calls < 100, "{calls} calls while nothing was to be done");
    Ok(())
}

pub async fn calls_from_all_workers() -> Outcome {
    must!(cops::alloc_cpu(3));
    let mut running = Vec::new();
    for seed in 0..40u64 {
        running.push(cops::spawn(async move {
            let (reader, writer) = cops::io::pipe()?;
            for turn in 0..50 {
                let message = (seed * turn).to_le_bytes().to_vec();
                if turn % 2 == 0 {
                    writer.write_all(message.clone()).await.0?;
                    if reader.read_exact(alloc::vec![0; 8]).await != (Ok(()), message) {
                        return Err(Errno::EIO);
                    }
                } else {
                    let (read, written) =
                        cops::select::join(reader.read_exact(alloc::vec![0; 8]), writer.write_all(message.clone()))
                            .await;
                    written.0?;
                    if read != (Ok(()), message) {
                        return Err(Errno::EIO);
                    }
                }
            }
            Ok(())
        }));
    }
    for handle in running {
        check_eq!(handle.await, Ok(Ok(())));
    }
    Ok(())
}
