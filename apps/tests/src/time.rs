//! Clocks and sleeping.

use abi_unix::types::{TimeSpec, clock};
use alloc::sync::Arc;
use cops::system::system as sync;
use cops::time::{Duration, Elapsed, Instant};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::harness::{LIMIT, Outcome};
use crate::{check, check_eq, must};

pub async fn clocks_agree_and_go_forward() -> Outcome {
    let mut last = 0;
    for _ in 0..1000 {
        let before = Instant::now().as_ns();
        let kernel = must!(sync::time(clock::MONOTONIC)).to_ns().unwrap_or(0);
        let after = Instant::now().as_ns();
        check!(before >= last && before <= kernel && kernel <= after, "{last} {before} {kernel} {after}");
        last = after;
    }
    const SECOND: u64 = 1_000_000_000;
    let before = cops::time::now_since_epoch_ns();
    let wall = must!(sync::time(clock::REALTIME)).to_ns().unwrap_or(0);
    let after = cops::time::now_since_epoch_ns();
    check!(before <= wall + SECOND && wall <= after + SECOND, "{before} {wall} {after}");
    Ok(())
}

/// The machine's clock has the date; a file written now has it too.
pub async fn the_date_is_plausible() -> Outcome {
    /// The first seconds of 2020 and of 2200.
    const YEARS: core::ops::Range<i64> = 1_577_836_800..7_258_118_400;
    let now = must!(sync::time(clock::REALTIME));
    check!(YEARS.contains(&now.seconds), "{} seconds since 1970", now.seconds);
    let file = must!(cops::file::File::create("/tmp/date"));
    let written = must!(file.status()).modified;
    let after = must!(sync::time(clock::REALTIME));
    check!(
        (now.seconds..=after.seconds).contains(&written.seconds),
        "{} and {}, written at {}",
        now.seconds,
        after.seconds,
        written.seconds
    );
    must!(cops::file::remove("/tmp/date"));
    Ok(())
}

pub async fn sleeping() -> Outcome {
    for ms in [0, 1, 5, 20] {
        let duration = Duration::from_millis(ms);
        let start = Instant::now();
        cops::sleep(duration).await;
        check!(start.elapsed() >= duration);
        let start = Instant::now();
        must!(sync::sleep(TimeSpec::from_ns(ms * 1_000_000)));
        check!(start.elapsed() >= duration);
        let start = Instant::now();
        must!(cops::nanosleep!(ms * 1_000_000, cops::current()));
        check!(start.elapsed() >= duration);
    }
    Ok(())
}

pub async fn many_sleepers_wake_in_order() -> Outcome {
    // On a slow machine a deadline may have passed before its coroutine first ran; then the order has no meaning, and
    // the next attempt has more time.
    for attempt in 0..8 {
        let first = Duration::from_millis(20 << attempt);
        let order = Arc::new(AtomicU64::new(0));
        let late = Arc::new(AtomicU64::new(0));
        let start = Instant::now();
        let mut sleepers = alloc::vec::Vec::new();
        for index in (0..50u64).rev() {
            let (order, late) = (order.clone(), late.clone());
            sleepers.push((
                index,
                cops::spawn(async move {
                    let deadline = start + first + Duration::from_millis(2 * index);
                    if Instant::now() >= start + first {
                        late.fetch_add(1, Ordering::Relaxed);
                    }
                    cops::sleep_until(deadline).await;
                    order.fetch_add(1, Ordering::Relaxed)
                }),
            ));
        }
        let mut wrong = None;
        for (index, sleeper) in sleepers {
            let place = must!(sleeper.await);
            if place != index {
                wrong = Some((index, place));
            }
        }
        if late.load(Ordering::Relaxed) == 0 {
            check_eq!(wrong, None);
            return Ok(());
        }
    }
    Err("the machine is too slow to start fifty coroutines in two seconds".into())
}

pub async fn deadlines_come_while_the_worker_is_busy() -> Outcome {
    let sleeper = cops::spawn(async {
        let start = Instant::now();
        cops::sleep(Duration::from_millis(10)).await;
        start.elapsed()
    });
    // Never idle, so that only the alarm in the kernel can wake it.
    let start = Instant::now();
    while !sleeper.is_finished() {
        check!(start.elapsed() < LIMIT);
        cops::yield_now().await;
    }
    let slept = must!(sleeper.await);
    check!(slept >= Duration::from_millis(10), "{slept:?}");
    Ok(())
}

pub async fn time_limits() -> Outcome {
    check_eq!(cops::timeout(Duration::from_millis(5), core::future::pending::<()>()).await, Err(Elapsed));
    check_eq!(cops::timeout(LIMIT, async { 3 }).await, Ok(3));
    for _ in 0..1000 {
        check_eq!(cops::timeout(LIMIT, cops::yield_now()).await, Ok(()));
    }
    Ok(())
}

pub async fn intervals() -> Outcome {
    let start = Instant::now();
    let mut interval = cops::interval(Duration::from_millis(4));
    for _ in 0..5 {
        interval.tick().await;
    }
    let took = start.elapsed();
    check!(took >= Duration::from_millis(16), "{took:?}");
    Ok(())
}
