//! Hostile processes: attacks on shared pages, on the ring, on everybody's time, and with random calls.

use abi_unix::Counter;
use abi_unix::types::signal;
use alloc::vec::Vec;
use cops::process::{Command, Ending};
use cops::system::scheduling;
use cops::time::Duration;

use crate::harness::{self, Outcome, counter, until};
use crate::{check_eq, must};

pub async fn nonsense_in_the_process_page() -> Outcome {
    let child = must!(Command::new(harness::OWN_PATH).argument("--act").argument("scribble-bitmap").spawn());
    let ending = harness::wait(&child).await;
    check_eq!(ending.map(|ending| ending.ok()), Some(Some(Ending::Exited(0))));
    Ok(())
}

pub async fn nonsense_in_the_completion_ring() -> Outcome {
    let child = must!(Command::new(harness::OWN_PATH).argument("--act").argument("scribble-ring").spawn());
    let ending = harness::wait(&child).await;
    check_eq!(ending.map(|ending| ending.ok()), Some(Some(Ending::Exited(0))));
    Ok(())
}

/// More processes than harts that never rest, as important as this one: each gets turns.
pub async fn processes_that_never_rest_share_the_machine() -> Outcome {
    let mut children = Vec::new();
    for _ in 0..8 {
        children.push(must!(harness::act("spin")));
    }
    // This process gets its turns, or the test does not end; and so do they.
    for _ in 0..20 {
        cops::sleep(Duration::from_millis(2)).await;
    }
    for child in &children {
        until(|| Ok(scheduling::get(child.number())?.cpu_ns > 1_000_000)).await?;
    }
    for child in &children {
        must!(child.kill());
        check_eq!(must!(child.wait().await), Ending::Killed(signal::KILL as u8));
    }
    Ok(())
}

/// A process that ends with unimportant calls in flight is gone soon, although others never rest.
pub async fn unimportant_calls_do_not_hold_an_end_up() -> Outcome {
    let mut children = Vec::new();
    for _ in 0..8 {
        children.push(must!(harness::act("spin")));
    }
    for child in &children {
        until(|| Ok(scheduling::get(child.number())?.cpu_ns > 1_000_000)).await?;
    }
    check_eq!(harness::ending_of_act("leave-unimportant-calls").await?, Ending::Exited(0));
    for child in &children {
        must!(child.kill());
        check_eq!(must!(child.wait().await), Ending::Killed(signal::KILL as u8));
    }
    Ok(())
}

/// Less important processes, however many, do not keep a more important one from its turns.
pub async fn unimportant_processes_do_not_delay_important_ones() -> Outcome {
    let mut children = Vec::new();
    for _ in 0..8 {
        children.push(must!(harness::act("spin-unimportant")));
    }
    // They have begun, and published their priority.
    for child in &children {
        until(|| Ok(scheduling::get(child.number())?.priority == 60)).await?;
    }
    for _ in 0..20 {
        cops::sleep(Duration::from_millis(2)).await;
    }
    for child in &children {
        must!(child.kill());
    }
    for child in &children {
        check_eq!(must!(child.wait().await), Ending::Killed(signal::KILL as u8));
    }
    Ok(())
}

/// A million random calls from four processes at once (a fiftieth of that in VS-mode), and everything still works.
pub async fn a_million_random_calls() -> Outcome {
    let (free, in_flight) = (counter(Counter::FramesFree)?, counter(Counter::CallsInFlight)?);
    // QEMU drops its translations at each call from VS-mode, so a million would take hours.
    let calls = if cops::system::interrupt::is_virtualised() { "5000" } else { "250000" };
    let mut children = Vec::new();
    for seed in 1..=4u32 {
        children.push(must!(Command::new("/bin/fuzz").argument(&alloc::format!("{seed}")).argument(calls).spawn()));
    }
    for child in &children {
        check_eq!(must!(child.wait().await), Ending::Exited(0));
    }
    // The ends of unimportant calls come when no process is busy any more.
    harness::returns_to(Counter::CallsInFlight, in_flight).await?;
    // The kernel's tables may have grown; its memory must not be lost.
    harness::reaches(Counter::FramesFree, free.saturating_sub(500)).await?;
    // And other processes still work.
    check_eq!(harness::ending_of_act("return").await?, Ending::Exited(7));
    Ok(())
}
