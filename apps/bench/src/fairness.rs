//! The shares that processes leave each other while one of them attacks: `bench fairness SCENARIO ARGUMENT...`.
//!
//! Each scenario is a file of its own, with its counterpart of the same name in `xtask/src/fairness`, which has the
//! goals. Its other processes are this program again ([`accomplice`]): `bench fairness SCENARIO act ARGUMENT...`.

mod attack;
mod budget_worst;
mod hoards;
mod largest_gap;
mod longest_stretch;
mod strangers;

use alloc::boxed::Box;
use core::pin::Pin;

use cops::process::{Child, Command};

use crate::Outcome;

/// Path of this program.
const OWN_PATH: &str = "/bin/bench";

pub async fn measure(scenario: &str) -> Outcome {
    let acts = crate::argument(3).is_ok_and(|word| word == "act");
    let run: Pin<Box<dyn Future<Output = Outcome> + Send>> = match scenario {
        "budget_worst" if acts => Box::pin(budget_worst::act()),
        "budget_worst" => Box::pin(budget_worst::measure()),
        "hoards" if acts => Box::pin(hoards::act()),
        "hoards" => Box::pin(hoards::measure()),
        "largest_gap" if acts => Box::pin(largest_gap::act()),
        "largest_gap" => Box::pin(largest_gap::measure()),
        "longest_stretch" if acts => Box::pin(longest_stretch::act()),
        "longest_stretch" => Box::pin(longest_stretch::measure()),
        "strangers" => Box::pin(strangers::measure()),
        other => return Err(alloc::format!("there is no scenario `{other}`")),
    };
    run.await
}

/// Describes another process of a scenario; the caller may add arguments before it starts it.
fn accomplice(scenario: &str) -> Command {
    Command::new(OWN_PATH).argument("fairness").argument(scenario).argument("act")
}

/// Kills a process and waits for its end.
async fn end(child: Child) -> Outcome {
    crate::attempt!(child.kill());
    crate::attempt!(child.wait().await);
    Ok(())
}
