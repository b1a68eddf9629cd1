//! User interrupts within a process: from the send to the handler's end, and to a coroutine that continues; the kernel
//! entries for them; a receiver's own entries into the kernel; a grant of the right to send, and its end.

use abi_unix::Counter;
use cops::interrupt::{Receiver, SendRight};

use crate::{Outcome, attempt, figure, now, repetitions};

/// Numbers of signals, of calls for each figure, and of rights that are granted and revoked, where time is cheap.
const SENT: usize = 100_000;
const CALLS: usize = 10_000;
const RIGHTS: usize = 1_000;

pub async fn measure() -> Outcome {
    let [sent, calls, rights] = [SENT, CALLS, RIGHTS].map(|usual| repetitions(usual) as u64);
    let receiver = attempt!(Receiver::new());
    let right = attempt!(receiver.grant());
    // The first send determines the way of sending.
    attempt!(right.send());
    receiver.wait().await;

    let (start, entries_before) = (now(), attempt!(entries()));
    for _ in 0..sent {
        attempt!(right.send());
        while !receiver.try_wait() {
            core::hint::spin_loop();
        }
    }
    let (end, entries_after) = (now(), attempt!(entries()));
    let handler = (end - start) as f64 / sent as f64;
    // The second look at the counters is an entry itself.
    let handler_entries = entries_after - entries_before - 1;

    // The receiver's own entries: a call that does nothing, and leaving the hart and coming back.
    let start = now();
    for _ in 0..calls {
        // SAFETY: the call has no pointers.
        let _ = unsafe { cops::system::call!(GetProcess) };
    }
    let call = (now() - start) as f64 / calls as f64;
    let start = now();
    for _ in 0..calls {
        cops::system::worker::yield_now();
    }
    let visit = (now() - start) as f64 / calls as f64;

    // The first send through a right determines the way of sending, so it is part of the grant.
    let (mut grant, mut revocation) = (0, 0);
    for _ in 0..rights {
        let start = now();
        let granted = attempt!(receiver.grant());
        attempt!(granted.send());
        while !receiver.try_wait() {
            core::hint::spin_loop();
        }
        let middle = now();
        attempt!(granted.revoke());
        revocation += now() - middle;
        grant += middle - start;
    }

    // Two coroutines signal each other in turn: each signal is one hand-over, as between the two threads on Linux.
    let other = attempt!(Receiver::new());
    let back = attempt!(other.grant());
    let opening = attempt!(right.duplicate());
    // The first send of each right determines the way of sending.
    let (first, second) = attempt!(play_turns(1, &opening, (receiver, back), (other, right)).await);
    let (start, entries_before) = (now(), attempt!(entries()));
    // Kept, because dropping the rights is a call.
    let _kept = attempt!(play_turns(sent, &opening, first, second).await);
    let (end, entries_after) = (now(), attempt!(entries()));
    // Printing interrupts the kernel.
    figure("handler", handler, "instructions");
    figure("entries", handler_entries as f64, "kernel entries");
    figure("call", call, "instructions");
    figure("visit", visit, "instructions");
    figure("grant", grant as f64 / rights as f64, "instructions");
    figure("revoke", revocation as f64 / rights as f64, "instructions");
    figure("coroutine", (end - start) as f64 / (2 * sent) as f64, "instructions");
    figure("coroutine_entries", (entries_after - entries_before - 1) as f64, "kernel entries");
    Ok(())
}

/// One side: its receiver, and its right to signal the other.
type Side = (Receiver, SendRight);

/// Runs two coroutines, one at each side, that signal each other in turn, after an opening signal.
async fn play_turns(turns: u64, opening: &SendRight, first: Side, second: Side) -> cops::system::Result<(Side, Side)> {
    let (first, second) = (cops::spawn(play(turns, first)), cops::spawn(play(turns, second)));
    cops::yield_now().await;
    opening.send()?;
    let ended = |side: Result<_, _>| side.unwrap_or(Err(cops::system::Errno::ECANCELED));
    Ok((ended(first.await)?, ended(second.await)?))
}

async fn play(turns: u64, (receiver, right): Side) -> cops::system::Result<Side> {
    for _ in 0..turns {
        receiver.wait().await;
        right.send()?;
    }
    Ok((receiver, right))
}

/// Returns the number of kernel entries of programs, without those of the kernel's own timer.
fn entries() -> cops::system::Result<u64> {
    let counters = cops::system::system::counters()?;
    Ok(counters[Counter::Traps as usize] - counters[Counter::TimerTraps as usize])
}
