//! Calls of an innocent process that fail while four others hoard kernel memory, and processes that cannot be started
//! while four hold as many calls as they may.

use anyhow::Result;

use super::{Scenario, ScenarioBoot, ScenarioLab};
use crate::board::Clock;

pub const SCENARIO: Scenario =
    Scenario { name: "hoards", goals: &[("innocent_failures", 0.0), ("spawn_failures", 0.0)], measure };

fn measure(lab: &ScenarioLab<'_>) -> Result<Vec<String>> {
    lab.boot(&ScenarioBoot { words: &["hoards"], harts: 1, memory: Some("512M"), clock: Clock::Instructions })
}
