//! Processes that mean harm: to shared pages, to the ring, to everybody's time, and with random calls.

use abi_unix::types::signal;
use alloc::vec::Vec;
use cops::Priority;
use cops::process::{Command, Ending};
use cops::time::{Duration, Instant};

use crate::harness::{self, Outcome};
use crate::{check, check_eq, must};

pub async fn nonsense_in_the_process_page() -> Outcome {
    let child = must!(Command::new(harness::OWN_PATH).argument("--act").argument("scribble-bitmap").spawn());
    let ending = harness::wait(&child, Duration::from_secs(10)).await;
    check_eq!(ending.map(|ending| ending.ok()), Some(Some(Ending::Exited(0))));
    Ok(())
}

pub async fn nonsense_in_the_completion_ring() -> Outcome {
    let child = must!(Command::new(harness::OWN_PATH).argument("--act").argument("scribble-ring").spawn());
    let ending = harness::wait(&child, Duration::from_secs(10)).await;
    check_eq!(ending.map(|ending| ending.ok()), Some(Some(Ending::Exited(0))));
    Ok(())
}

/// A process that claims the highest priority for ever, on every hart there is, under a ceiling below ours.
pub async fn claims_do_not_starve_those_above_their_ceiling() -> Outcome {
    let mut children = Vec::new();
    for _ in 0..8 {
        children.push(must!(
            Command::new(harness::OWN_PATH)
                .argument("--act")
                .argument("spin")
                .ceiling(Priority::LOWEST.number())
                .spawn()
        ));
    }
    let start = Instant::now();
    for _ in 0..20 {
        cops::sleep(Duration::from_millis(2)).await;
    }
    let took = start.elapsed();
    for child in &children {
        must!(child.kill());
        check_eq!(must!(child.wait().await), Ending::Killed(signal::KILL as u8));
    }
    check!(took < Duration::from_secs(2), "40 ms of sleep took {took:?}");
    Ok(())
}

/// A million random calls from four processes at once, and everything still works.
pub async fn a_million_random_calls() -> Outcome {
    let free = harness::counter(abi_unix::Counter::FramesFree)?;
    let mut children = Vec::new();
    for seed in 1..=4u32 {
        children.push(must!(Command::new("/bin/fuzz").argument(&alloc::format!("{seed}")).argument("250000").spawn()));
    }
    for child in &children {
        check_eq!(must!(child.wait().await), Ending::Exited(0));
    }
    let after = harness::counter(abi_unix::Counter::FramesFree)?;
    // The kernel's tables may have grown; its memory must not be gone.
    check!(after + 2000 >= free, "{free} frames were free before, {after} after");
    // And it still serves.
    check_eq!(harness::ending_of_act("return").await?, Ending::Exited(7));
    Ok(())
}
