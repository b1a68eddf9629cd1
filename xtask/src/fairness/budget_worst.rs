//! The largest share of a process with a budget of a tenth of the machine, by any call, made in any way.

use anyhow::Result;

use super::{Scenario, ScenarioBoot, ScenarioLab};
use crate::board::Clock;

pub const SCENARIO: Scenario = Scenario { name: "budget_worst", goals: &[("budget_worst_percent", 12.0)], measure };

fn measure(lab: &ScenarioLab<'_>) -> Result<Vec<String>> {
    lab.boot(&ScenarioBoot { words: &["budget_worst"], harts: 1, memory: None, clock: Clock::SlowInstructions })
}
