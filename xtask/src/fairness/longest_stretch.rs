//! The longest stretch of the Unix kernel between two looks for interrupts, in instructions, over all calls whose work
//! can be long, each at its largest.

use anyhow::Result;

use super::{Scenario, ScenarioBoot, ScenarioLab};
use crate::board::Clock;

pub const SCENARIO: Scenario = Scenario { name: "longest_stretch", goals: &[("longest_stretch", 50_000.0)], measure };

fn measure(lab: &ScenarioLab<'_>) -> Result<Vec<String>> {
    // On one hart: with several, QEMU's clock counts the instructions of all.
    lab.boot(&ScenarioBoot { words: &["longest_stretch"], harts: 1, memory: None, clock: Clock::Instructions })
}
