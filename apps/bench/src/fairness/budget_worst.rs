//! Every call of the table in every way to make it, repeated for ever by a process with a budget of a tenth of the
//! machine: the work that a second process, which never rests, loses.
//!
//! The victim counts its rounds; its loss is the part of the rounds that it does without an attacker. So everything
//! counts that comes with an attack: interrupts in the victim's time, ways from one process to the other, work without
//! a payer. (Its processor time would not show an interrupt that it pays for.)
//!
//! [`attack`](mod@attack) makes the calls; [`EXCEPTIONS`] lists those that cannot be repeated, with the reason.

use alloc::string::String;
use core::ffi::CStr;

use abi_unix::authority::Held;
use abi_unix::types::open;
use cops::Priority;
use cops::system::{self, Descriptor, SystemCall, file};
use cops::time::Duration;

use super::attack::{self, WAYS};
use super::{accomplice, end};
use crate::{Outcome, attempt, figure, now};

const MS: u64 = 1_000_000;
/// A tenth of the time of the one hart.
const BUDGET: (u64, u64) = (10 * MS, 100 * MS);
/// Watched time: whole periods, after a start-up time.
const WATCHED: Duration = Duration::from_millis(1000);
const BEFORE: Duration = Duration::from_millis(100);
const VICTIM: Priority = Priority::saturating(31);

/// Instructions between two reports of the victim, roughly: a round.
const ROUND: u32 = 10_000;
/// The number of rounds that the victim has done.
const ROUNDS: &CStr = c"/tmp/rounds";

/// Calls that are not repeated, with the reason.
const EXCEPTIONS: &[(SystemCall, &str)] = &[
    (SystemCall::Exit, "ends the caller; `spawn` repeats processes that exit"),
    (SystemCall::ExitGroup, "as exit"),
    (SystemCall::SignalReturn, "needs a frame"),
    (SystemCall::SignalSuspend, "waits without a limit"),
];

/// Number of times [`BEFORE`] in which an attacker's children must have ended.
const PATIENCE: usize = 400;

/// Measures all pairs, or those of the calls in the next argument, separated by commas.
pub async fn measure() -> Outcome {
    let chosen = crate::argument(3).unwrap_or_default();
    let is_chosen = |name: &str| chosen.is_empty() || chosen.split(',').any(|one| one == name);
    let held = attempt!(system::authority::held(0));
    attempt!(system::authority::set(0, Held { inheritable: attack::CAPABILITIES, ..held }));
    let rounds = attempt!(file::open(ROUNDS, open::CREAT | open::RDWR, 0o600));
    let victim = attempt!(accomplice("budget_worst").argument("victim").priority(VICTIM).spawn());
    attempt!(system::scheduling::set_budget(victim.number(), None, BUDGET.1));
    let alone = speed(&rounds).await?;
    let (mut worst, mut pairs) = ((0.0, String::new()), 0);
    for (word, way) in WAYS {
        for &call in SystemCall::ALL {
            if !way.is_for(call) || !is_chosen(call.name()) || EXCEPTIONS.iter().any(|(other, _)| *other == call) {
                continue;
            }
            let share = 100.0 - attack(&rounds, word, call).await? / alone * 100.0;
            cops::println!("{word} {}: {share:.2} %", call.name());
            if share > worst.0 {
                worst = (share, alloc::format!("{word} {}", call.name()));
            }
            pairs += 1;
        }
    }
    end(victim).await?;
    cops::println!("the worst is {}", worst.1);
    figure("budget_worst_percent", worst.0, "percent of the machine");
    figure("budget_pairs", f64::from(pairs), "calls and ways");
    Ok(())
}

/// Returns the victim's rounds in a second.
async fn speed(rounds: &Descriptor) -> Result<f64, String> {
    let done = || {
        let mut bytes = [0; 8];
        file::read_at(rounds.raw(), &mut bytes, 0).map(|_| u64::from_le_bytes(bytes))
    };
    cops::sleep(BEFORE).await;
    let (before, start) = (attempt!(done()), now());
    cops::sleep(WATCHED).await;
    let (after, end) = (attempt!(done()), now());
    Ok((after - before) as f64 * 1e9 / (end - start) as f64)
}

/// Returns the victim's rounds in a second beside one attack.
async fn attack(rounds: &Descriptor, way: &str, call: SystemCall) -> Result<f64, String> {
    let processes = || system::system::counter(abi_unix::Counter::Processes).map_err(|error| alloc::format!("{error}"));
    let others = processes()?;
    let attacker = accomplice("budget_worst").argument(way).argument(call.name()).priority(Priority::HIGHEST);
    let attacker = attempt!(attacker.spawn());
    attempt!(system::scheduling::set_budget(attacker.number(), Some(BUDGET.0), BUDGET.1));
    let speed = speed(rounds).await?;
    if system::scheduling::get(attacker.number()).is_err() {
        return Err(alloc::format!("the attacker with {way} {} has ended", call.name()));
    }
    end(attacker).await?;
    // The attacker's children have their own share of the rest of its budget, and must not count for the next one.
    for _ in 0..PATIENCE {
        if processes()? <= others {
            break;
        }
        cops::sleep(BEFORE).await;
    }
    Ok(speed)
}

/// Runs as another process: `act victim`, and `act WAY CALL`.
pub async fn act() -> Outcome {
    let word = crate::argument(4)?;
    // The program's own priority within the process's ceiling, which counts from the next turn on.
    let priority = if word == "victim" { VICTIM } else { Priority::HIGHEST };
    attempt!(cops::set_priority(cops::current(), priority));
    cops::yield_now().await;
    if word == "victim" {
        return count_rounds();
    }
    attack::run(&word, &crate::argument(5)?)
}

/// Runs the victim: it reports each round.
fn count_rounds() -> Outcome {
    let file = attempt!(file::open(ROUNDS, open::WRONLY, 0));
    for rounds in 1u64.. {
        for _ in 0..ROUND {
            core::hint::spin_loop();
        }
        attempt!(file::write_at(file.raw(), &rounds.to_le_bytes(), 0));
    }
    Ok(())
}
