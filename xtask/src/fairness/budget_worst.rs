//! The largest share of a process with a budget of a tenth of the machine, by any call, made in any way.

use anyhow::Result;

use super::{Boot, Lab, Scenario};
use crate::board::Clock;

pub const SCENARIO: Scenario = Scenario { name: "budget_worst", goals: &[("budget_worst_percent", 12.0)], measure };

fn measure(lab: &Lab<'_>) -> Result<Vec<String>> {
    lab.boot(&Boot { words: &["budget_worst"], harts: 1, memory: None, clock: Clock::SlowInstructions })
}
