//! Every call of the table in every way to make it, repeated for ever by a process with a budget of a tenth of the
//! machine: the time that a second process, which never rests, loses.
//!
//! [`attack`](mod@attack) makes the calls; [`EXCEPTIONS`] lists those that cannot be repeated, with the reason.

use alloc::string::String;

use abi_unix::authority::Held;
use cops::Priority;
use cops::process::Child;
use cops::system::{self, SystemCall};
use cops::time::Duration;

use super::attack::{self, WAYS};
use super::{accomplice, end};
use crate::{Outcome, attempt, figure, now};

const MS: u64 = 1_000_000;
/// A tenth of the time of the one hart.
const BUDGET: (u64, u64) = (10 * MS, 100 * MS);
/// Watched time: whole periods, after a start-up time.
const WATCHED: Duration = Duration::from_millis(1000);
const BEFORE: Duration = Duration::from_millis(200);
const VICTIM: Priority = Priority::saturating(31);

/// Calls that are not repeated, with the reason.
const EXCEPTIONS: &[(SystemCall, &str)] = &[
    (SystemCall::Exit, "ends the caller; `spawn` repeats processes that exit"),
    (SystemCall::ExitGroup, "as exit"),
    (SystemCall::SignalReturn, "needs a frame"),
    (SystemCall::SignalSuspend, "waits without a limit"),
];

/// Number of times [`BEFORE`] in which an attacker's children must have ended.
const PATIENCE: usize = 200;

/// Measures all pairs, or those of the calls in the next argument, separated by commas.
pub async fn measure() -> Outcome {
    let chosen = crate::argument(3).unwrap_or_default();
    let is_chosen = |name: &str| chosen.is_empty() || chosen.split(',').any(|one| one == name);
    let held = attempt!(system::authority::held(0));
    attempt!(system::authority::set(0, Held { inheritable: attack::CAPABILITIES, ..held }));
    let victim = attempt!(accomplice("budget_worst").argument("victim").priority(VICTIM).spawn());
    attempt!(system::scheduling::set_budget(victim.number(), None, BUDGET.1));
    let (mut worst, mut pairs) = ((0.0, String::new()), 0);
    for (word, way) in WAYS {
        for &call in SystemCall::ALL {
            if !way.is_for(call) || !is_chosen(call.name()) || EXCEPTIONS.iter().any(|(other, _)| *other == call) {
                continue;
            }
            let share = attack(&victim, word, call).await?;
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

/// Returns the victim's loss by one attack, in percent.
async fn attack(victim: &Child, way: &str, call: SystemCall) -> Result<f64, String> {
    let processes = || system::system::counter(abi_unix::Counter::Processes).map_err(|error| alloc::format!("{error}"));
    let others = processes()?;
    let attacker = accomplice("budget_worst").argument(way).argument(call.name()).priority(Priority::HIGHEST);
    let attacker = attempt!(attacker.spawn());
    attempt!(system::scheduling::set_budget(attacker.number(), Some(BUDGET.0), BUDGET.1));
    cops::sleep(BEFORE).await;
    let before = attempt!(system::scheduling::get(victim.number())).cpu_ns;
    let start = now();
    cops::sleep(WATCHED).await;
    let passed = now() - start;
    let had = attempt!(system::scheduling::get(victim.number())).cpu_ns - before;
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
    Ok(100.0 - had as f64 / passed as f64 * 100.0)
}

/// Runs as another process: `act victim`, and `act WAY CALL`.
pub async fn act() -> Outcome {
    let word = crate::argument(4)?;
    // The program's own priority within the process's ceiling, which counts from the next turn on.
    let priority = if word == "victim" { VICTIM } else { Priority::HIGHEST };
    attempt!(cops::set_priority(cops::current(), priority));
    cops::yield_now().await;
    if word == "victim" {
        loop {
            core::hint::spin_loop();
        }
    }
    attack::run(&word, &crate::argument(5)?)
}
