//! User interrupts of a busy worker that does not pause.

use alloc::boxed::Box;
use core::future::{Future as _, poll_fn};
use core::task::Poll;

use abi_unix::Counter;
use cops::time::{Duration, Instant};
use cops::{Priority, State};

use crate::harness::{LIMIT, Outcome, counter};
use crate::{check, check_eq, must};

/// Computes sums that are wrong if an interrupt changes a floating-point register.
#[inline(never)]
fn compute(steps: u32) -> [f64; 8] {
    let mut sums = [0.0f64; 8];
    for step in 0..steps {
        for (place, sum) in sums.iter_mut().enumerate() {
            *sum += f64::from(step) * (place as f64 + 0.5);
        }
    }
    sums
}

/// Lets a coroutine nap for three milliseconds while this worker computes and does not look at the ring. Returns
/// whether an interrupt alone made the coroutine ready; `false` if the try has no result, because the nap was over
/// before.
async fn compute_beside_a_nap(expected: &[f64; 8]) -> core::result::Result<bool, alloc::string::String> {
    let sleeper = cops::spawn_at(Priority::HIGHEST, async { cops::macros::nanosleep(3_000_000).await.0 });
    let cid = sleeper.cid();
    // The sleeper runs first, and waits.
    cops::yield_now().await;
    if cops::executor().state(cid) != Ok(State::Blocked) {
        // On a slow machine the nap may be over already.
        check_eq!(must!(sleeper.await), Ok(0));
        return Ok(false);
    }
    // From here on this worker does not look at the ring: only an interrupt can make the sleeper ready.
    let start = Instant::now();
    while cops::executor().state(cid) == Ok(State::Blocked) {
        check_eq!(compute(200), *expected);
        check!(start.elapsed() < LIMIT, "no completion interrupts");
    }
    check_eq!(must!(sleeper.await), Ok(0));
    Ok(true)
}

pub async fn a_busy_worker_learns_of_completions() -> Outcome {
    let delivered = counter(Counter::UserInterrupts)?;
    let expected = compute(200);
    let mut seen = 0;
    for _ in 0..200 {
        seen += u64::from(compute_beside_a_nap(&expected).await?);
        if seen == 20 {
            break;
        }
    }
    check!(seen > 0);
    check!(counter(Counter::UserInterrupts)? >= delivered + seen);
    Ok(())
}

/// The completion of the alarm comes first, and only the executor can handle it.
pub async fn a_busy_worker_learns_of_completions_behind_the_alarms() -> Outcome {
    let expected = compute(200);
    let mut seen = 0;
    for _ in 0..200 {
        // Its alarm stays in the kernel.
        let mut dropped = Box::pin(cops::time::sleep(Duration::from_millis(1)));
        let is_over = poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context).is_ready())).await;
        drop(dropped);
        let is_seen = compute_beside_a_nap(&expected).await?;
        seen += u64::from(is_seen && !is_over);
        // The alarm that follows is set.
        cops::time::sleep(Duration::from_micros(100)).await;
        if seen == 5 {
            break;
        }
    }
    check!(seen > 0);
    Ok(())
}

pub async fn less_important_completions_do_not_interrupt() -> Outcome {
    // From 60 milliseconds to 8 seconds.
    for nap in (0..8).map(|times| Duration::from_millis(60 << times)) {
        let start = Instant::now();
        let sleeper =
            cops::spawn_at(Priority::LOWEST, async move { cops::macros::nanosleep(nap.as_nanos() as u64).await.0 });
        let cid = sleeper.cid();
        while cops::executor().state(cid) == Ok(State::Ready) {
            cops::time::sleep(Duration::from_micros(100)).await;
        }
        // On a slow machine the nap may be over already, and be noticed in the ordinary way; then the try has no
        // result, and the next nap is longer.
        let in_time = start.elapsed() < nap / 2;
        if !in_time {
            check_eq!(must!(sleeper.await), Ok(0));
            continue;
        }
        while start.elapsed() < 2 * nap {
            core::hint::black_box(compute(50));
        }
        let state = cops::executor().state(cid);
        check_eq!(must!(sleeper.await), Ok(0));
        // The nap has been over for long, but the ring was not read.
        check_eq!(state, Ok(State::Blocked));
        return Ok(());
    }
    Err("the machine is too slow for a nap".into())
}

pub async fn returning_without_an_interrupt_is_an_error() -> Outcome {
    // SAFETY: there is no interrupt to return from, so no register changes.
    let result = unsafe { cops::system::syscall(abi_unix::SystemCall::InterruptReturn as usize, [0; 6]) };
    check_eq!(abi_unix::errno::decode(result), Err(cops::Errno::EINVAL));
    Ok(())
}
