//! User interrupts within a process: from the send to the handler's end, and to a coroutine that goes on; and what the
//! kernel has to do with it.

use abi_unix::Counter;
use cops::Priority;
use cops::interrupt::Receiver;

use crate::{Outcome, attempt, figure, now};

/// How many are sent for each figure.
const SENT: u64 = 100_000;

pub async fn measure() -> Outcome {
    let receiver = attempt!(Receiver::new());
    let right = attempt!(receiver.grant());
    // The first send finds out how to send.
    attempt!(right.send());
    receiver.wait().await;

    let (start, entries_before) = (now(), attempt!(entries()));
    for _ in 0..SENT {
        attempt!(right.send());
        while !receiver.try_wait() {
            core::hint::spin_loop();
        }
    }
    let (end, entries_after) = (now(), attempt!(entries()));
    let handler = (end - start) as f64 / SENT as f64;
    // The second look at the counters is an entry itself.
    let handler_entries = entries_after - entries_before - 1;

    let waiting = cops::spawn_at(Priority::HIGHEST, async move {
        for _ in 0..=SENT {
            receiver.wait().await;
        }
        // Dropped later: that is a call.
        receiver
    });
    cops::yield_now().await;
    attempt!(right.send());
    cops::yield_now().await;
    let (start, entries_before) = (now(), attempt!(entries()));
    for _ in 0..SENT {
        attempt!(right.send());
        // The one that waits is more important and goes on first.
        cops::yield_now().await;
    }
    let (end, entries_after) = (now(), attempt!(entries()));
    if !waiting.is_finished() {
        return Err("signals were lost".into());
    }
    // What is printed interrupts the kernel.
    figure("handler", handler, "instructions");
    figure("entries", handler_entries as f64, "kernel entries");
    figure("coroutine", (end - start) as f64 / SENT as f64, "instructions");
    figure("coroutine_entries", (entries_after - entries_before - 1) as f64, "kernel entries");
    Ok(())
}

/// How often programs have entered the kernel, but for its own timer.
fn entries() -> cops::system::Result<u64> {
    let counters = cops::system::system::counters()?;
    Ok(counters[Counter::Traps as usize] - counters[Counter::TimerTraps as usize])
}
