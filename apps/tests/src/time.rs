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

/// Returns the address of a function of the scheduler's image.
fn address_in_image(name: &[u8]) -> Option<usize> {
    let image = cops::start::scheduler_image()?;
    let word = |at: usize| Some(usize::from_le_bytes(image.get(at..at + 8)?.try_into().ok()?));
    let small = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    let (headers, count) = (word(32)?, small(56)? & 0xffff);
    let dynamic = (0..count).map(|index| headers + index * 56).find(|&header| small(header) == Some(2))?;
    let entry = |tag: usize| {
        let start = word(dynamic + 8)?;
        (0..32).map(|index| start + index * 16).find(|&at| word(at) == Some(tag)).and_then(|at| word(at + 8))
    };
    let (hash, strings, symbols) = (entry(4)?, entry(5)?, entry(6)?);
    (1..small(hash + 4)?).map(|index| symbols + index * 24).find_map(|symbol| {
        let found = image.get(strings + small(symbol)?..)?;
        let is_it = found.starts_with(name) && found.get(name.len()) == Some(&0);
        if is_it { Some(image.as_ptr().addr() + word(symbol + 8)?) } else { None }
    })
}

/// C libraries find the clock in the image, and its times are in one order with those of calls.
pub async fn the_clock_of_c_libraries_needs_no_call() -> Outcome {
    type Function = unsafe extern "C" fn(usize, *mut [u64; 2]) -> i32;
    let function = |name: &str| match address_in_image(name.as_bytes()) {
        // SAFETY: the image has a function of this type under each of the names below.
        Some(address) => Ok(unsafe { core::mem::transmute::<usize, Function>(address) }),
        None => Err(alloc::format!("the image has no {name}")),
    };
    let (read, resolution) = (function("__vdso_clock_gettime")?, function("__vdso_clock_getres")?);
    let ns = |clock: u32| {
        let mut time = [0; 2];
        // SAFETY: the place is a `struct timespec`.
        let result = unsafe { read(clock as usize, &raw mut time) };
        (result, time[0] * 1_000_000_000 + time[1])
    };
    for clock in [clock::MONOTONIC, clock::REALTIME, clock::BOOTTIME, clock::MONOTONIC_COARSE] {
        let mut last = 0;
        for _ in 0..100 {
            let before = must!(sync::time(clock)).to_ns().unwrap_or(0);
            let (result, found) = ns(clock);
            let after = must!(sync::time(clock)).to_ns().unwrap_or(0);
            check_eq!(result, 0);
            check!(last <= before && before <= found && found <= after, "{clock}: {last} {before} {found} {after}");
            last = after;
        }
    }
    // Those of processor time are left to the call, and so are its errors.
    let before = must!(sync::time(clock::PROCESS_CPUTIME)).to_ns().unwrap_or(0);
    let (result, found) = ns(clock::PROCESS_CPUTIME);
    check!(result == 0 && before <= found, "{result} {before} {found}");
    check_eq!(ns(99).0, -22);
    let mut time = [0; 2];
    // SAFETY: as above; without a place nothing is written.
    let results =
        unsafe { [resolution(1, &raw mut time), resolution(1, core::ptr::null_mut()), resolution(99, &mut time)] };
    check_eq!((results, time[0]), ([0, 0, -22], 0));
    let seconds = ns(clock::REALTIME).1 / 1_000_000_000;
    // SAFETY: `gettimeofday` takes two places, each of them optional.
    let day: unsafe extern "C" fn(*mut [u64; 2], *mut [u32; 2]) -> i32 =
        unsafe { core::mem::transmute(function("__vdso_gettimeofday")?) };
    let mut zone = [7; 2];
    // SAFETY: the places are a `struct timeval` and a `struct timezone`.
    check_eq!(unsafe { day(&raw mut time, &raw mut zone) }, 0);
    check!(time[0] - seconds <= 1 && time[1] < 1_000_000 && zone == [0; 2], "{seconds} {time:?} {zone:?}");
    Ok(())
}
